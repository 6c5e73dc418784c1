"""Opens the logs that an earlier process left."""
