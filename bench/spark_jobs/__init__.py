"""Jobs of Spark over the tier, each beside the plain way to do the same: rows of `make bench`."""
