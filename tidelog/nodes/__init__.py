"""The processes of nodes, and what runs in them besides their rooms."""
