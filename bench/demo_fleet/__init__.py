"""A fleet that runs itself: twelve tenants on two cells, a noisy one, a slow broker, and one more broker."""
