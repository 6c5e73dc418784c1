"""Followers fetch from leaders."""
