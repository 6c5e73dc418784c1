"""Record batches (magic 2), which flow unchanged from client to log to follower."""
