"""The bytes of tiered segments as columns: headers, records, indexes, what was aborted."""
