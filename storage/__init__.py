"""One partition's log on disk, byte for byte as Apache Kafka writes it."""
