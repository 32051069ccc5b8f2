"""The suite's programs inside Spark (extra `spark`)."""
