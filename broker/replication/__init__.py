"""Followers and the fetches that they send to leaders."""
