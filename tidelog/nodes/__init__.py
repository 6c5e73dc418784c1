"""The processes that nodes are, and what runs in them beside their rooms."""
