"""A broker's work for the tier: claims, copying, retention, and replicas that start from the tier."""
