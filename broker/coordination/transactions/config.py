"""Settings of transaction coordinators, and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import TransactionSettings

ID_BYTES_MAX = 32_000
BYTES_PER_ID = 256  # of all ids on average; clients' are shorter


def is_too_long(transactional_id: str, bytes_max: int = ID_BYTES_MAX) -> bool:
    """Whether no coordinator has such an id, because InitProducerId takes none that is so long. A tenant's prefix
    counts. Bytes that were no UTF-8 count as what they were read as, which is longer."""
    if transactional_id.isascii():
        return len(transactional_id) > bytes_max
    return len(transactional_id.encode()) > bytes_max


class TransactionLimits(NamedTuple):
    """What one owner, a tenant or the operators together, may have in one partition of `__transaction_state`:
    transactional ids, open transactions, and partitions and topics of one transaction.

    A turn of the loop reads or writes the record of a whole transaction, which names each topic once: 10,000 topics
    take 12 ms to read, and 100,000 partitions of one topic take 3 ms.
    """

    ids: int = 1_000_000
    open: int = 100_000
    partitions: int = 100_000
    topics: int = 10_000

    @property
    def id_bytes(self) -> int:
        """Of all ids together. The longest one always has room."""
        return max(self.ids * BYTES_PER_ID, ID_BYTES_MAX)

    def check_new_id(self, ids: int, id_bytes: int, new_bytes: int) -> None:
        """Raises POLICY_VIOLATION if there is no room for one more id, of `new_bytes`, beside so many of so many
        bytes."""
        if ids >= self.ids:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"more than {self.ids} transactional ids")
        if id_bytes + new_bytes > self.id_bytes:
            text = f"more than {self.id_bytes} bytes of transactional ids, {BYTES_PER_ID} for each of {self.ids}"
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, text)


@dataclass(frozen=True, slots=True)
class TransactionConfig(TransactionSettings):
    """Times in milliseconds.

    `record_bytes_max` bounds the value of a record, which names all partitions of a transaction: with names of 30
    letters, 10,000 topics take 370,000 bytes. `id_bytes_max`: the longest transactional id. The others bound the work
    of one turn: transactions that are aborted or taken up, their partitions, and ids that are looked at.
    """

    record_bytes_max: int = 1_000_000
    id_bytes_max: int = ID_BYTES_MAX
    transactions_per_turn_max: int = 100
    partitions_per_turn_max: int = 5_000
    ids_per_turn_max: int = 100
