"""The tier shard, which decides changes of a partition's tier: its requests, records and decisions."""
