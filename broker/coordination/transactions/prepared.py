"""The prepared transactions of a shard: their markers are asked for, and each is complete once its own are written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from broker.coordination.transactions.producers import NEW_PROTOCOL_VERSION
from broker.coordination.transactions.values import MarkersToWrite, Transaction, TransactionState


class Prepared:
    """`serials`: see `MarkersToWrite`; those of all shards of a broker."""

    def __init__(self, serials: Iterator[int] | None = None) -> None:
        self._serials = itertools.count() if serials is None else serials
        self._serial_of: dict[str, int] = {}

    def ask(self, transactional_id: str, transaction: Transaction, epoch_floor: int) -> MarkersToWrite:
        """The act of a transaction that is prepared, or was taken back to that: earlier acts of its id are void."""
        self._serial_of[transactional_id] = serial = next(self._serials)
        return MarkersToWrite(
            transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            transaction.version >= NEW_PROTOCOL_VERSION,
            epoch_floor,
            serial,
        )

    def is_newest(self, transactional_id: str, serial: int) -> bool:
        """Whether the id is prepared, and that act its newest one."""
        return self._serial_of.get(transactional_id) == serial

    def wanted(self, acts: Iterable[object], epoch_floor: int) -> list[MarkersToWrite]:
        """The newest acts of ids that are prepared, with the present floor: a higher one may have been taken back."""
        return [
            act._replace(epoch_floor=epoch_floor)
            for act in acts
            if isinstance(act, MarkersToWrite) and self.is_newest(act.transactional_id, act.serial)
        ]

    def drop(self, transactional_id: str) -> None:
        """It is not prepared."""
        self._serial_of.pop(transactional_id, None)
