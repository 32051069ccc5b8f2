"""The gRPC service of parameter servers: messages, streams and certificates."""
