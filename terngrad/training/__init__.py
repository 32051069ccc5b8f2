"""Training: the step of Algorithm 1 and the loop, state and records around it."""
