"""The environment of all jobs: a Spark session, tasks with results in order."""
