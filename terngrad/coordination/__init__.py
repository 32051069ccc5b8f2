"""Decides which workers make steps together, and decides again when one joins or is lost."""
