"""The groups of a moving tenant, in a shard; see `MovingKeys`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.records import decode_key
from broker.coordination.shard import CoordinatorRecord, Now
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC


class MovingGroups:
    topic = GROUP_TOPIC
    clearing, copying = KeysPhase.CLEARING, KeysPhase.COPYING
    waits_in: tuple[KeysPhase, ...] = ()

    def cleared(self, shard: GroupShard, prefix: str, most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        return shard.remove_groups((prefix,), most, now)

    def check_ready(self, shard: GroupShard, prefix: str, phase: KeysPhase, now: Now) -> Work[None]:
        """Markers of pending offsets come to the old range."""
        if shard.pending.groups(prefix):
            raise ProtocolError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction is open in a group")
        yield 1

    def names(self, shard: GroupShard, prefix: str) -> Iterator[str | None]:
        return shard.names((prefix,))

    def records_of(self, shard: GroupShard, key: str) -> Work[list[CoordinatorRecord]]:
        return shard.records_of(key)

    def introduced(self, shard: GroupShard, leader_epoch: int) -> list[CoordinatorRecord]:
        return []

    def accepted(
        self,
        shard: GroupShard,
        leader_epoch: int,
        records: Sequence[CoordinatorRecord],
        belongs: Callable[[str], bool],
    ) -> list[CoordinatorRecord]:
        for record in records:
            try:
                key = decode_key(record.key)
            except ValueError:
                key = None
            if key is None or record.value is None or not belongs(key.group_id):
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "a record that does not belong here")
        return list(records)
