"""Record batches (magic 2): the currency that flows unchanged from client to log to follower."""
