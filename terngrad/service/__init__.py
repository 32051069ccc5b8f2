"""The messages between workers and parameter servers, and the figures of these."""
