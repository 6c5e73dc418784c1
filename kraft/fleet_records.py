"""Metadata records of what keeps a fleet level by itself: quotas, the health of brokers, the balancer's work.

They need `tidelog.version` 3.
"""
