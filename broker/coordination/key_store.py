"""Access to the keys of a moving tenant, groups or transactional ids, in the partitions that this broker leads.

Each call checks the current image, so that a broker with newer metadata than the caller rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.coordination.moving_keys import MovingKeys
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

LANE = "keys that move"
KEY_COST = 50  # includes some tens of a group's offsets


class KeyStore:
    """The keys of one kind. Every method raises ProtocolError as the runtime does, and NOT_COORDINATOR if the tenant is
    past that phase."""

    def __init__(
        self, runtime: CoordinatorRuntime, image: Callable[[], MetadataImage], keys: MovingKeys[Any]
    ) -> None:  # fmt: skip
        self.keys = keys
        self.topic = keys.topic
        self._runtime = runtime
        self._image = image

    def hosted(self, held: KeyRange) -> dict[int, int]:
        """The range's partitions whose shards serve here, with their leader epochs."""
        epochs = {index: self.leader_epoch(index) for index in range(held.first, held.end)}
        return {index: epoch for index, epoch in epochs.items() if epoch is not None}

    def leader_epoch(self, index: int) -> int | None:
        """None if the partition's shard does not serve here."""
        return self._runtime.leader_epoch(self.topic, index)

    def keeping_changed(self, prefix: str) -> None:
        """At once, give up keys that are no longer served here and take up others."""

        def act(shard: Any, now: Now) -> list[CoordinatorRecord]:
            records: list[CoordinatorRecord] = shard.keeping_changed(prefix, now)
            return records

        self._runtime.notify(self.topic, act)

    def place_of(self, tenant_id: str, keys_epoch: int, phase: KeysPhase) -> tuple[TenantImage, KeyRange]:
        """The tenant and the range that its keys move to. Raises NOT_COORDINATOR unless it is in exactly this phase."""
        image = self._image()
        tenant, topic = image.tenants.get(tenant_id), image.topics.get(self.topic)
        if tenant is None or topic is None or tenant.keys_target is None:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        held = range_at(topic, tenant, tenant.keys_target)
        if held is None or (tenant.keys_epoch, tenant.keys_phase) != (keys_epoch, phase):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return tenant, held

    async def clear(self, index: int, tenant: TenantImage, most: int) -> int:
        """Remove at most `most` of the tenant's keys from their new range. Returns how many there were before."""

        def decide(shard: Any, now: Now, _: Ticket) -> Decision[CoordinatorRecord, int]:
            held = self.place_of(tenant.id, tenant.keys_epoch, self.keys.clearing)[1]
            _check(index in held)
            return self.keys.cleared(shard, tenant.prefix, most, now)

        return await self._runtime.write(self.topic, index, decide)

    async def check_ready(self, index: int, tenant: TenantImage) -> None:
        """Raises ProtocolError while transactions must end before the tenant's phase does."""

        def query(shard: Any, now: Now) -> Work[None]:
            self._check_held(index, tenant, tenant.keys_phase)
            return self.keys.check_ready(shard, tenant.prefix, tenant.keys_phase, now)

        await self._runtime.read_slowly(self.topic, index, query, LANE, own=True)

    async def names(self, index: int, tenant: TenantImage) -> list[str]:
        """The tenant's keys in a partition that no longer serves them; what was committed there is durable."""

        def query(shard: Any, _: Now) -> Work[list[str]]:
            self._check_held(index, tenant, self.keys.copying)
            found: list[str] = []
            for name in self.keys.names(shard, tenant.prefix):
                if name is not None:
                    found.append(name)
                yield 1
            return found

        return await self._runtime.read_slowly(self.topic, index, query, LANE, own=True)

    def _check_held(self, index: int, tenant: TenantImage, phase: KeysPhase) -> None:
        """Raises NOT_COORDINATOR unless the tenant is in this phase, and its keys are in a range with the partition."""
        self.place_of(tenant.id, tenant.keys_epoch, phase)
        topic = self._image().topics.get(self.topic)
        held = range_for(topic, tenant) if topic is not None else None
        _check(held is not None and index in held)

    async def records(self, index: int, names: Sequence[str]) -> list[tuple[str, list[CoordinatorRecord]]]:
        """Each key's durable records."""

        def query(shard: Any, _: Now) -> Work[list[tuple[str, list[CoordinatorRecord]]]]:
            found = []
            for name in names:
                found.append((name, (yield from self.keys.records_of(shard, name))))
                yield KEY_COST
            return found

        return await self._runtime.read_slowly(self.topic, index, query, LANE, own=True)

    async def introduced(self, index: int, leader_epoch: int) -> list[CoordinatorRecord]:
        """See `MovingKeys`. `leader_epoch`: of the partition."""

        def query(shard: Any, _: Now) -> list[CoordinatorRecord]:
            _check(self.leader_epoch(index) == leader_epoch)
            return self.keys.introduced(shard, leader_epoch)

        return await self._runtime.read(self.topic, index, query)

    async def take(
        self, index: int, tenant_id: str, keys_epoch: int, topic_id: bytes, records: list[CoordinatorRecord]
    ) -> None:
        """Store records that are handed over to a partition here; returns when they are durable. Raises INVALID_REQUEST
        for records that are not the tenant's, or not of that partition."""

        def decide(shard: Any, __: Now, ___: Ticket) -> Decision[CoordinatorRecord, None]:
            tenant, held = self.place_of(tenant_id, keys_epoch, self.keys.copying)
            topic = self._image().topics.get(self.topic)
            _check(topic is not None and topic.topic_id == topic_id)

            def belongs(key: str) -> bool:
                return key.startswith(tenant.prefix) and index == held.first + partition_for(key, held.count)

            leader_epoch = self.leader_epoch(index)
            if leader_epoch is None:
                raise ProtocolError(ErrorCode.NOT_COORDINATOR)
            return Decision(None, self.keys.accepted(shard, leader_epoch, records, belongs))

        await self._runtime.write(self.topic, index, decide)


def _check(fits: bool) -> None:
    if not fits:
        raise ProtocolError(ErrorCode.NOT_COORDINATOR)
