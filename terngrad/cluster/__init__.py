"""Who takes part in a training, and who is alive."""
