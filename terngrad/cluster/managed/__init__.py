"""Reads a training's processes from the environment of a managed cluster."""
