"""What the balancer aims at, one goal per file."""
