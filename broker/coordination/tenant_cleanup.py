"""Removal of the groups, offsets and transactional ids of deleted tenants, in the partitions that this broker
coordinates.

While the metadata shows a tenant that is being deleted, every shard here removes its keys; open transactions are
aborted before. Partitions without a tenant's keys are reported to the controller, repeatedly until it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from kraft.records import TenantState
from wire.messages import TenantGroupsClearedRequest, schema_uuid

log = logging.getLogger(__name__)

VERSION = 0


class CleanupConfig(Struct, frozen=True):
    """`keys_at_once`: removed from a shard in one decision."""

    round_s: float = 0.5
    call_timeout_s: float = 5.0
    keys_at_once: int = 100


class KeyHolder(Protocol):
    """The coordinator of one internal topic. `topic`: its name."""

    @property
    def topic(self) -> str: ...

    def hosted(self) -> list[int]:
        """The partitions whose shards serve here."""
        ...

    async def remove_keys(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        """Remove at most `most` keys that begin with `prefixes` from one partition. Returns how many of these there
        were before. Raises ProtocolError: CONCURRENT_TRANSACTIONS while some are left and have to wait."""
        ...


class TenantCleanup:
    """Owns one task, which sleeps while no tenant is being deleted."""

    def __init__(
        self,
        holders: Sequence[KeyHolder],
        image: Callable[[], MetadataImage],
        channel: ControllerCalls,
        broker: Callable[[], tuple[int, int]],
        config: CleanupConfig | None = None,
    ) -> None:
        """`broker` returns this broker's id and epoch."""
        self._holders = holders
        self._image = image
        self._channel = channel
        self._broker = broker
        self._config = config or CleanupConfig()
        self._doomed: dict[str, str] = {}  # tenant id → the prefix of its keys
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for tenant_id in delta.access.tenants.changed:
            tenant = image.tenants.get(tenant_id)
            if tenant is not None and tenant.state is TenantState.DELETING:
                self._doomed[tenant_id] = tenant.prefix
            else:
                self._doomed.pop(tenant_id, None)
        if self._doomed:
            self._changed.set()
            if self._task is None and not self._is_stopped:
                self._task = asyncio.create_task(self._run(), name=duty("tenant-cleanup"))

    async def stop(self) -> None:
        """For good: metadata that still arrives begins nothing."""
        self._is_stopped = True
        await end_task(self._task)
        self._task = None

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self._doomed:
                await self._changed.wait()
                continue
            doomed = dict(self._doomed)
            for holder in self._holders:
                await self._remove(holder, doomed)
            await asyncio.sleep(self._config.round_s)

    async def _remove(self, holder: KeyHolder, doomed: dict[str, str]) -> None:
        """One round in the partitions of a topic."""
        by_tenants: dict[tuple[str, ...], list[int]] = {}
        for index in holder.hosted():
            by_tenants.setdefault(await self._cleared(holder, index, doomed), []).append(index)
        topic = self._image().topics.get(holder.topic)
        for tenants, partitions in by_tenants.items():
            if tenants and topic is not None:
                await self._report(list(tenants), topic.topic_id, partitions)

    async def _cleared(self, holder: KeyHolder, index: int, doomed: dict[str, str]) -> tuple[str, ...]:
        """The tenants of which the partition has nothing left, and that is committed. Where one must wait, the others
        are looked at by themselves."""
        try:
            while await holder.remove_keys(index, tuple(doomed.values()), self._config.keys_at_once):
                pass
        except ProtocolError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or len(doomed) == 1:
                return ()
        else:
            return tuple(doomed)
        cleared: list[str] = []
        for tenant_id, prefix in doomed.items():
            cleared += await self._cleared(holder, index, {tenant_id: prefix})
        return tuple(cleared)

    async def _report(self, tenants: list[str], topic_id: bytes, partitions: list[int]) -> None:
        broker_id, broker_epoch = self._broker()
        request = TenantGroupsClearedRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            tenants=tenants,
            partitions=partitions,
            topic_id=schema_uuid(topic_id),
        )
        try:
            await self._channel.call(request, VERSION, timeout_s=self._config.call_timeout_s)
        except (ControllerUnavailable, OutcomeUnknown, MalformedFrame) as error:
            log.debug("removed keys were not reported to the controller", extra={"reason": str(error)})
