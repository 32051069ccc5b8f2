"""The gRPC service between workers and parameter servers: messages, streams, certificates."""
