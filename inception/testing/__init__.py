"""Short trainings for tests: starts them, watches them, and checks their results."""
