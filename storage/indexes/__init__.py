"""The sparse indexes of one segment."""
