"""ps 0 as the coordinator: it decides which workers make steps together."""
