"""Training: the step of Algorithm 1, and the loop, state and summaries around it."""
