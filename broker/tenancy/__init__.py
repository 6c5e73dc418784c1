"""The cluster as a tenant sees it: its own names in both directions, its own brokers, and nothing of other tenants."""
