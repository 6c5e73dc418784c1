"""The codec, the planning and the data source over the tier."""
