"""Starts, watches, restarts and stops processes, on this machine or over ssh."""
