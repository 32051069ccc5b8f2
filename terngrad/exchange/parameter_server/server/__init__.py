"""A parameter server: takes what workers push and sends them the results."""
