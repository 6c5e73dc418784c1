"""Transactional ids that coordinators know, and open transactions with what they hold back."""

from __future__ import annotations

from tidelog.admin.library_client import AdminClient
from tidelog.admin.open_transactions import examined
from tidelog.admin.transaction_admin import Listed, listed
from tidelog.admin.transaction_doctor import Examined
from tidelog.tier.access import blocked_bytes


def ids(client: AdminClient) -> list[Listed]:
    """Raises Refused and KafkaError."""
    return sorted(listed(client, (), None, -1))


def open_ones(client: AdminClient) -> Examined:
    """Raises Refused and KafkaError."""
    return examined(client, None, lambda: blocked_bytes(client))
