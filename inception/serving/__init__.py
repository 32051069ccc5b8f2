"""A ps as a process: what it serves, until when, and what it says."""
