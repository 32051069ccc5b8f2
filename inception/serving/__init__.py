"""A ps as a process: what it serves, when it ends, and what it logs."""
