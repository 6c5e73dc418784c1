"""What a broker does for the tier: claims on leadership, copying, retention, and how replicas begin from it."""
