"""Parameter servers, which sum the workers' gradients at each step."""
