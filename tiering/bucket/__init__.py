"""What lies in the bucket, by its names and values: segments, whose bucket it is."""
