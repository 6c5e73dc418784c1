"""Metrics that clients push (KIP-714): subscriptions, client instances, and their series within bounds."""
