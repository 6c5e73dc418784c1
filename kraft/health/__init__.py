"""Judging brokers' health: who is slower than its peers, and what may be done about a sick one."""
