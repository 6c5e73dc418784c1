"""One look at everything that is known to go wrong in a cluster."""
