"""Parameter servers, which sum the workers' gradients over gRPC."""
