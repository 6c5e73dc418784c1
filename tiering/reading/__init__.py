"""Reads of tiered segments: checked chunks on the local disk, indexes in memory."""
