"""A whole cluster on one machine: its layout, its supervisor, and what it leaves in its directory."""
