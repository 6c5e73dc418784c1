"""What all jobs run in: a Spark session, tasks with results in order."""
