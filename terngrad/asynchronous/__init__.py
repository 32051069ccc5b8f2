"""Asynchronous training: parameter servers hold the parameters and apply gradients as they come."""
