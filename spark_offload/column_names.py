"""The columns by name. Apart, for whoever asks for the schema alone should not have to import numpy and pyarrow."""

KEY, VALUE, TOPIC, PARTITION = "key", "value", "topic", "partition"
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS = "offset", "timestamp", "timestampType", "headers"
