"""Ternary gradients: turns the local gradients of data-parallel nodes into shared updates."""
