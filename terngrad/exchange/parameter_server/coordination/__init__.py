"""How ps 0 decides which workers make steps together."""
