"""The library: groups of processes, and reducers of gradients, for a program of your own."""
