"""The tier shards of one broker: hosted on `__tier_state`, asked by the leaders of partitions."""
