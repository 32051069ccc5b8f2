"""How many nodes and variables there may be, and how large sums of codes."""

# The counters of the random draws have 16 bits for each.
MAX_NODES = 1 << 16
MAX_VARIABLES = 1 << 16

# The native kernels hold sums in up to 18 bit planes: nodes times the largest code.
MAX_SUM = 1 << 16
