"""How a tenant sees the cluster: names of its own in both directions, its own brokers, and nothing of anybody else."""
