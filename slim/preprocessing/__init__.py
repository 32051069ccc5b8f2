"""Turns stored images into the inputs of nets; one file for each family of nets."""
