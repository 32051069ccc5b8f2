"""Nets: a module for each family, and one for the small nets."""
