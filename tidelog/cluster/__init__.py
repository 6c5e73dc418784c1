"""A complete cluster on one machine: its layout, its supervisor, and the files in its directory."""
