"""The most expensive legal requests, and what they do to others."""
