"""Turns a stored image into the input of a net; one file for each family of nets."""
