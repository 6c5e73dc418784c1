"""How commands reach a running cluster, and what they ask of it."""
