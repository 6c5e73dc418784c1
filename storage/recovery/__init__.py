"""Opening what an earlier process left."""
