"""Compaction of logs on this disk."""
