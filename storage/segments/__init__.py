"""One segment: its file, its batches, where one lies in it."""
