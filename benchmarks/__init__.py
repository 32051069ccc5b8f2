"""Measurements, one question a program; results/ holds dated answers."""
