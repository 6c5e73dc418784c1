"""One segment: its file, its batches, and look-ups of batches."""
