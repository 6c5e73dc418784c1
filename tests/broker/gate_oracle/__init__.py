"""What Apache Kafka answers in each API to who has which right, and how that was asked."""
