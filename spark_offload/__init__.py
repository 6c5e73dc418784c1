"""Spark over the tier: a vectorised codec from record batches to Arrow columns, and the data source that uses it."""
