"""The broker's part of the audit: from its journal to the topic `__audit`, and from there to the object store."""
