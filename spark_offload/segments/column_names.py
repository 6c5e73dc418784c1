"""The columns' names, in their own module so that reading the schema alone does not import numpy and pyarrow."""

KEY, VALUE, TOPIC, PARTITION = "key", "value", "topic", "partition"
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS = "offset", "timestamp", "timestampType", "headers"
