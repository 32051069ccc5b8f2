"""Turns stored images into the inputs of nets, by a recipe for each family of nets."""
