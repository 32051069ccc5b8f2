"""Exchanges: largest scale, exact sum of codes and mean of floats over nodes."""
