"""Quotas: what clients and tenants may use of one broker, and how long they wait when they use more."""
