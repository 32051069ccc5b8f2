"""A parameter server: it combines the workers' pushes and sends the results."""
