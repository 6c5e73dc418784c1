"""Clients that others wrote, against real node processes."""
