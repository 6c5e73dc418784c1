"""The tier shards of one broker, hosted on `__tier_state`, and the client for partition leaders."""
