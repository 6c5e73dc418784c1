"""README and docs, done as they say."""
