"""Tiered segments in the object store: their state, who may change it, and how they are published and read."""
