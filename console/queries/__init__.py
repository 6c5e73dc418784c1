"""Questions that pages ask the cluster: each takes the client of a session, blocks, and returns plain values."""
