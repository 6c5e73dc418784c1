"""The first metadata of a cluster that is rebuilt from its object store."""
