"""What a shard has decided, as it was before it became bytes."""

from __future__ import annotations

from broker.coordination.transactions.records import decode_value, is_plain
from broker.coordination.transactions.values import Transaction


class Decided:
    """The newest decision, which is replayed next, and those whose records lack tagged fields. Apache Kafka, too,
    remembers the latter until another coordinator leads."""

    def __init__(self) -> None:
        self._newest: tuple[bytes, Transaction] | None = None
        self._plain: dict[str, tuple[bytes, Transaction]] = {}

    def add(self, value: bytes, transaction: Transaction) -> None:
        self._newest = (value, transaction)

    def replayed(self, transactional_id: str, value: bytes | None) -> None:
        """The value of the id's newest record."""
        self._plain.pop(transactional_id, None)
        if value is not None and self._newest is not None and self._newest[0] is value and is_plain(value):
            self._plain[transactional_id] = self._newest

    def transaction(self, transactional_id: str, value: bytes) -> Transaction:
        """Raises UnreadableRecord."""
        for known in (self._newest, self._plain.get(transactional_id)):
            if known is not None and known[0] is value:
                return known[1]
        return decode_value(value)
