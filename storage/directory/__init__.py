"""One log directory: the logs in it, made, found and removed."""
