"""The Kafka protocol as bytes and values, and the connections that carry it."""
