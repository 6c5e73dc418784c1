"""Audit events of logs, and the journal that keeps them until they are shipped."""
