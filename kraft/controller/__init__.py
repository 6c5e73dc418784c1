"""Decisions about metadata, one file per concern, and the driver that commits them."""
