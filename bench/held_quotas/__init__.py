"""How well quotas hold for client libraries: `python -m bench.held_quotas`."""
