"""The broker: Kafka request handlers, partitions, replication and coordination."""
