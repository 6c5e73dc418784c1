"""Transactions: the state of each transactional id, and the coordinator that clients and partition leaders ask."""
