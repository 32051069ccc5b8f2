"""A cluster in one process and in virtual time: real decisions, streams that are queues."""
