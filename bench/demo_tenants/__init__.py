"""Sixteen airlines as sixteen tenants, whose topics have the same name."""
