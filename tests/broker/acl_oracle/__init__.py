"""What Apache Kafka's own authorizer answers on generated cases, and how that was asked."""
