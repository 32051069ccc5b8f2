"""Nets; one file for each family."""
