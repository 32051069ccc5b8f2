"""The library: groups of processes, and reducers of gradients, for anyone's program."""
