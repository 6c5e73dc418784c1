"""Measurements of what keeps a shared cluster even: load, quotas, health and balance."""
