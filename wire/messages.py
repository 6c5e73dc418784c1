"""Every request and response class in one import place: kafka-python's, and ours for what it lacks.

All are compiled from Apache Kafka's message schemas (ours lie in `wire/schemas`). Fields are snake_case; nested
structs are attributes of the message class (`MetadataResponse.MetadataResponseTopic`).
"""
