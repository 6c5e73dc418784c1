"""History in the object store: what of a partition lies there, who may change it, and how it is published and read."""
