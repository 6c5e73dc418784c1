"""Changes of the tier by jobs outside the cluster: their segments, and proposals to accept them."""
