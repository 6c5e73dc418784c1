"""Calculations of tenants' quotas."""
