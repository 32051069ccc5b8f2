"""What the counters of the random draws have room for: 16 bits each."""

MAX_NODES = 1 << 16
MAX_VARIABLES = 1 << 16
