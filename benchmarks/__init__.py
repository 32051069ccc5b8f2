"""Measurements: each program answers one question; results/ holds dated answers."""
