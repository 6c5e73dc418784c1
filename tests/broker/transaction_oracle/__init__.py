"""What Apache Kafka answers to transactional clients in each state of a transaction, and how that was asked."""
