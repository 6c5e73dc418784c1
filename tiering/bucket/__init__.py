"""The bucket's objects: their names, segments, and the file that names the owning cluster."""
