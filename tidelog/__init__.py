"""The command: one node, a whole cluster on one machine, and its administration."""
