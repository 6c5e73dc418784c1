"""Clients of a running cluster, for commands."""
