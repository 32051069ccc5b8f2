"""Codecs: how gradients are encoded for the exchange, and how many bytes that takes."""
