"""Codecs: how a gradient is written for the exchange, and what it costs in bytes."""
