"""Message schemas that the codec library lacks, in Apache Kafka's JSON format."""
