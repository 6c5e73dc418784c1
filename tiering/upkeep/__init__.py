"""Upkeep of the bucket: inventory, consistency checks, sweeping and restoring."""
