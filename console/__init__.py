"""A web page on a cluster: a Kafka client like any other, which acts with the rights of the person at it."""
