"""Record batches against Kafka's Python clients and against hostile bytes."""
