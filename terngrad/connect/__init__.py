"""How two processes connect: who is admitted, over which channel, and what encrypts it."""
