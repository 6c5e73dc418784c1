"""Verification of the tier: planted damage, undamaged tiers, reports."""
