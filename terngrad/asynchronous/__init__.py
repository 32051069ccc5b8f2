"""Asynchronous training: ps hold the parameters and apply each gradient on arrival."""
