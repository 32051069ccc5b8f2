"""A parameter server: sums of the workers' gradients over gRPC."""
