"""Which process of a cluster this is, how it meets the others, and how they are started."""
