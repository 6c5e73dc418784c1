"""Requests of commands about the tier, to brokers and to the object store."""
