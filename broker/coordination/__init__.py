"""The runtime of shards on internal topics, and the shards."""
