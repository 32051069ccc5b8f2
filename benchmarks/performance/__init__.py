"""A model of the time of a training step on a cluster, and its validation."""
