"""Runs Spark jobs for commands."""
