"""Exchanges: the largest scale, the exact sum of codes and the mean of floats over nodes."""
