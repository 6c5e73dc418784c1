"""Compaction of tiered partitions: the newest value of each key stays, as Apache Kafka's log cleaner would have it."""
