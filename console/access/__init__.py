"""Questions to the cluster: a session's own client, its threads, and answers that are kept for a moment."""
