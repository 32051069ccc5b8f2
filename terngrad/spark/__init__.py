"""Work on the executors of Apache Spark (extra `spark`)."""
