"""Who may change what the tier holds of a partition: the tier shard, its requests, records and decisions."""
