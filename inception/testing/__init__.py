"""Short trainings for tests: how they are started and watched, and what they must leave."""
