"""Who takes part in a training, as told by the environment of a cluster that others manage."""
