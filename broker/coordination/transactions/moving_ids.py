"""The transactional ids of a moving tenant, in a shard; see `MovingKeys`. Pure.

An ongoing transaction goes along with its id: the new coordinator ends it, in the partitions that it has. A prepared
one ends first: its markers are under way. If they have been so for long, the move does not begin. With the ids goes the
highest coordinator epoch that was used for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.coordination.shard import CoordinatorRecord, Now
from broker.coordination.transactions.coordinator_epochs import coordinator_epoch, raised_floor
from broker.coordination.transactions.records import (
    EPOCH_FLOOR_KEY,
    decode_epoch_floor,
    decode_key,
    epoch_floor_record,
    state_of,
    transaction_record,
)
from broker.coordination.transactions.transaction_shard import TransactionShard
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.tenants import tenant_of
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC

COST_AT_ONCE = 200  # units of `common.pacing`
LOOK_COST = 2
LACK_MS = 3_000  # partitions that commit late take their markers within two seconds, or soon after


class MovingIds:
    topic = TRANSACTION_TOPIC
    clearing, copying = KeysPhase.IDS_CLEARING, KeysPhase.IDS_COPYING
    waits_in: tuple[KeysPhase, ...] = (KeysPhase.IDS_CLEARING, KeysPhase.DRAINING, KeysPhase.HOLDING)

    def cleared(self, shard: TransactionShard, prefix: str, most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """Copies of what another partition has: nothing is aborted."""
        names = shard.committed.some_of(tenant_of(prefix) or "", most)
        return Decision(len(names), [transaction_record(name, None) for name in names])

    def check_ready(self, shard: TransactionShard, prefix: str, phase: KeysPhase, now: Now) -> Work[None]:
        """Before the fence, markers may be under way, if they have not been so for long."""
        spent = 0
        for name in shard.open.with_prefix(prefix):
            if spent >= COST_AT_ONCE:
                yield spent
                spent = 0
            spent += LOOK_COST + shard.reading_cost(name)
            transaction = shard.open_transaction(name)
            if transaction is None:
                continue
            if phase not in (self.clearing, self.copying):
                if GROUP_TOPIC in transaction.partitions:
                    raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "a transaction has offsets of a group")
            elif transaction.state.is_prepared and (
                phase is self.copying or now.wall_ms - transaction.updated_ms >= LACK_MS
            ):
                raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "a transaction lacks markers")
        yield spent + 1

    def names(self, shard: TransactionShard, prefix: str) -> Iterator[str | None]:
        return iter(shard.committed.with_prefix(prefix))

    def records_of(self, shard: TransactionShard, key: str) -> Work[list[CoordinatorRecord]]:
        value = shard.committed.get(key)
        yield 1
        if value is None:
            return []
        if state_of(value).is_prepared:
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "a transaction lacks markers")
        return [transaction_record(key, value)]

    def introduced(self, shard: TransactionShard, leader_epoch: int) -> list[CoordinatorRecord]:
        """The coordinator epoch that markers of these ids have had at most."""
        return [epoch_floor_record(coordinator_epoch(leader_epoch, shard.epoch_floor))]

    def accepted(
        self,
        shard: TransactionShard,
        leader_epoch: int,
        records: Sequence[CoordinatorRecord],
        belongs: Callable[[str], bool],
    ) -> list[CoordinatorRecord]:
        """The first one is what `introduced` returned."""
        try:
            first, *others = records
            if first.key != EPOCH_FLOOR_KEY:
                raise ValueError("no coordinator epoch")
            floor = raised_floor(shard.epoch_floor, leader_epoch, decode_epoch_floor(first.value))
            is_whole = all(_may_come(record, belongs) for record in others)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "a record that does not belong here")
        return [*([epoch_floor_record(floor)] if floor > shard.epoch_floor else []), *others]


def _may_come(record: CoordinatorRecord, belongs: Callable[[str], bool]) -> bool:
    name = decode_key(record.key)
    return (
        name is not None and record.value is not None and belongs(name) and not state_of(record.value).is_prepared
    )  # fmt: skip
