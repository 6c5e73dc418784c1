"""Compaction of tiered partitions: keeps the newest value of each key, as Apache Kafka's log cleaner does."""
