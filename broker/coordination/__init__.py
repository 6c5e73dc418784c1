"""The runtime that any shard on any internal topic runs in, and its shards."""
