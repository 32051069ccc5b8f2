"""Weights that other programs wrote, under the suite's names."""
