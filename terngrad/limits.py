"""Limits on the number of nodes and variables, and on sums of codes."""

# The counters of the random draws have 16 bits for each.
MAX_NODES = 1 << 16
MAX_VARIABLES = 1 << 16

# Nodes times the largest code. The native kernels hold sums in up to 18 bit planes.
MAX_SUM = 1 << 16
ELASTIC_WAIT_SECS = 600.0  # for which an elastic training waits for workers, by default
