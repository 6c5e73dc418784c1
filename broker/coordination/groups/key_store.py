"""Access to the groups of a moving tenant, in the partitions that this broker leads.

Each call checks the current image, so that a broker with newer metadata than the caller rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.records import decode_key
from broker.coordination.placement import partition_for
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.shard import CoordinatorRecord, Now, Ticket
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.key_ranges import range_at, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC

LANE = "keys that move"
GROUP_COST = 50  # includes some tens of its offsets


class KeyStore:
    """Every method raises ProtocolError as the runtime does, and NOT_COORDINATOR if the tenant is past that phase."""

    def __init__(self, runtime: CoordinatorRuntime, image: Callable[[], MetadataImage]) -> None:
        self._runtime = runtime
        self._image = image

    def hosted(self, held: KeyRange) -> dict[int, int]:
        """The range's partitions whose shards serve here, with their leader epochs."""
        epochs = {index: self._runtime.leader_epoch(GROUP_TOPIC, index) for index in range(held.first, held.end)}
        return {index: epoch for index, epoch in epochs.items() if epoch is not None}

    def keeping_changed(self, prefix: str) -> None:
        """At once, give up groups that are no longer served here and take up others."""

        def act(shard: GroupShard, now: Now) -> list[CoordinatorRecord]:
            return shard.keeping_changed(prefix, now)

        self._runtime.notify(GROUP_TOPIC, act)

    def place_of(self, tenant_id: str, keys_epoch: int, phase: KeysPhase) -> tuple[TenantImage, KeyRange]:
        """The tenant and the range that its groups move to. Raises NOT_COORDINATOR unless it is in exactly this
        phase."""
        image = self._image()
        tenant, topic = image.tenants.get(tenant_id), image.topics.get(GROUP_TOPIC)
        if tenant is None or topic is None or tenant.keys_target is None:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        held = range_at(topic, tenant, tenant.keys_target)
        if held is None or (tenant.keys_epoch, tenant.keys_phase) != (keys_epoch, phase):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return tenant, held

    async def clear(self, index: int, tenant: TenantImage, most: int) -> int:
        """Remove at most `most` of the tenant's groups from their new range. Returns how many there were before."""

        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, int]:
            held = self.place_of(tenant.id, tenant.keys_epoch, KeysPhase.CLEARING)[1]
            _check(index in held)
            return shard.remove_groups((tenant.prefix,), most, now)

        return await self._runtime.write(GROUP_TOPIC, index, decide)

    async def groups(self, index: int, tenant: TenantImage) -> list[str]:
        """The tenant's groups in a partition that no longer serves them; their commits there are durable."""

        def query(shard: GroupShard, _: Now) -> Work[list[str]]:
            self.place_of(tenant.id, tenant.keys_epoch, KeysPhase.COPYING)
            topic = self._image().topics.get(GROUP_TOPIC)
            held = range_for(topic, tenant) if topic is not None else None
            _check(held is not None and index in held)
            found: list[str] = []
            for name in shard.names((tenant.prefix,)):
                if name is not None:
                    found.append(name)
                yield 1
            return found

        return await self._runtime.read_slowly(GROUP_TOPIC, index, query, LANE, own=True)

    async def records(self, index: int, groups: Sequence[str]) -> list[tuple[str, list[CoordinatorRecord]]]:
        """Each group's durable records."""

        def query(shard: GroupShard, _: Now) -> Work[list[tuple[str, list[CoordinatorRecord]]]]:
            found = []
            for group_id in groups:
                found.append((group_id, (yield from shard.records_of(group_id))))
                yield GROUP_COST
            return found

        return await self._runtime.read_slowly(GROUP_TOPIC, index, query, LANE, own=True)

    async def take(
        self, index: int, tenant_id: str, keys_epoch: int, topic_id: bytes, records: list[CoordinatorRecord]
    ) -> None:
        """Store records that are handed over to a partition here; returns when they are durable. Raises INVALID_REQUEST
        for records that are not the tenant's, or not of that partition."""

        def decide(_: GroupShard, __: Now, ___: Ticket) -> Decision[CoordinatorRecord, None]:
            tenant, held = self.place_of(tenant_id, keys_epoch, KeysPhase.COPYING)
            topic = self._image().topics.get(GROUP_TOPIC)
            _check(topic is not None and topic.topic_id == topic_id)
            for record in records:
                if not _belongs(record, tenant, held, index):
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "a record that does not belong here")
            return Decision(None, records)

        await self._runtime.write(GROUP_TOPIC, index, decide)


def _check(fits: bool) -> None:
    if not fits:
        raise ProtocolError(ErrorCode.NOT_COORDINATOR)


def _belongs(record: CoordinatorRecord, tenant: TenantImage, held: KeyRange, index: int) -> bool:
    try:
        key = decode_key(record.key)
    except ValueError:
        return False
    if key is None or record.value is None or not key.group_id.startswith(tenant.prefix):
        return False
    return index == held.first + partition_for(key.group_id, held.count)
