"""Immutable views of the committed metadata, and the deltas between them."""
