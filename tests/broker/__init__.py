"""The broker: partitions, replication and the handlers of the protocol."""
