"""How jobs beside the cluster change the tier: segments that they make, and proposals to take them."""
