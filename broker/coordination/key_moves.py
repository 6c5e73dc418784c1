"""The groups and transactional ids of moving tenants: this broker's work in the partitions that it leads.

`kraft.controller.key_moves` describes the whole. While the metadata shows a tenant in a phase of its move, this broker
clears its partitions, has transactions end there, or hands them over. It reports them to the controller, repeatedly
until the tenant is past that phase. No state survives a restart: the next leader of a partition starts over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from broker.broker_link import BrokerLink
from broker.coordination.key_store import KeyStore
from broker.coordination.placement import partition_for
from broker.coordination.shard import CoordinatorRecord
from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError, known_error
from common.lifecycle import duty, end_task
from kraft.image.delta import MetadataDelta
from kraft.image.key_ranges import range_at, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from kraft.records import KeysPhase
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import ImportKeysRequest, TenantKeysReadyRequest, schema_uuid

log = logging.getLogger(__name__)

VERSION = 0
Done = list[tuple[int, int]]
"""Finished partitions and their leader epochs."""


class KeyMovesConfig(Struct, frozen=True):
    """Seconds, counts and bytes. `retry_s`: pause after a step that could not be done yet, otherwise `round_s`.
    `progress_s`: how often the controller hears that keys of unfinished partitions were taken. `resend_s`: how long a
    request is sent again before its partition begins from the first key once more."""

    round_s: float = 0.5
    progress_s: float = 1.0
    resend_s: float = 10.0
    retry_s: float = 0.1
    call_timeout_s: float = 5.0
    keys_at_once: int = 100
    partitions_at_once: int = 4  # each part of a partition's keys waits for its commit, and clients for all
    request_bytes_max: int = 64 << 10
    request_records_max: int = 250  # the importing shard checks and applies all of a request in one turn


class KeyHandover:
    """Clears and hands over one tenant's keys of one kind at a time. `new_link` creates a link to another broker;
    `broker` returns this broker's id and epoch."""

    def __init__(
        self,
        store: KeyStore,
        image: Callable[[], MetadataImage],
        channel: ControllerCalls,
        new_link: Callable[[], BrokerLink],
        broker: Callable[[], tuple[int, int]],
        config: KeyMovesConfig | None = None,
    ) -> None:
        self.store = store
        self._keys = store.keys
        self._image = image
        self._channel = channel
        self._new_link = new_link
        self._broker = broker
        self._config = config or KeyMovesConfig()
        # by tenant, …, partition: the leader epoch in which the partition was finished
        self._ready: dict[tuple[str, int, KeysPhase, int], int] = {}
        self._links: dict[tuple[int, int], BrokerLink] = {}  # by broker and lane
        self._taken: dict[tuple[str, int, KeysPhase, int], int] = {}  # records that were taken in the best attempt
        self._progress_at = 0.0

    def forget(self, tenant_id: str) -> None:
        """The tenant's move is over."""
        self._ready = {key: epoch for key, epoch in self._ready.items() if key[0] != tenant_id}
        self._taken = {key: count for key, count in self._taken.items() if key[0] != tenant_id}

    def close(self) -> None:
        for link in self._links.values():
            link.drop()

    async def advance(self, tenant_id: str) -> bool:
        """Whether this broker's current work for the tenant is done and reported."""
        image, keys = self._image(), self._keys
        tenant, topic = image.tenants.get(tenant_id), image.topics.get(self.store.topic)
        if tenant is None or topic is None or tenant.keys_target is None:
            return True
        if tenant.keys_phase not in (keys.clearing, keys.copying, *keys.waits_in):
            return True
        there, here = range_at(topic, tenant, tenant.keys_target), range_for(topic, tenant)
        if there is None or here is None:
            return True
        hosted: dict[int, int] = {}
        if tenant.keys_phase is keys.clearing:
            hosted |= self.store.hosted(there)
        if tenant.keys_phase is keys.copying or tenant.keys_phase in keys.waits_in:
            hosted |= self.store.hosted(here)
        step = tenant_id, tenant.keys_epoch, tenant.keys_phase
        done = [(index, epoch) for index, epoch in hosted.items() if self._ready.get((*step, index)) == epoch]
        left = [one for one in hosted.items() if one not in done]
        for begin in range(0, len(left), self._config.partitions_at_once):
            some = left[begin : begin + self._config.partitions_at_once]
            found = await asyncio.gather(
                *(self._do(lane, *one, tenant, topic, there) for lane, one in enumerate(some))
            )  # fmt: skip
            finished = [
                one
                for one, is_done in zip(some, found, strict=True)
                if is_done and self.store.leader_epoch(one[0]) == one[1]
            ]
            self._ready |= {(*step, index): epoch for index, epoch in finished}
            done += finished
            if finished and len(left) > begin + len(some):  # the controller sees that the fence goes on
                await self._report(tenant, topic, finished)
        reported = not done or await self._report(tenant, topic, done)
        return reported and len(done) == len(hosted)

    async def _do(
        self, lane: int, index: int, epoch: int, tenant: TenantImage, topic: TopicImage, there: KeyRange
    ) -> bool:
        """Whether the partition is finished. `lane`: one of those that work at the same time."""
        try:
            if tenant.keys_phase is self._keys.clearing and index in there:
                while await self.store.clear(index, tenant, self._config.keys_at_once):
                    pass
            else:
                await self.store.check_ready(index, tenant)
            if tenant.keys_phase is self._keys.copying:
                await self._hand_over(lane, index, epoch, tenant, topic, there)
        except ProtocolError as error:
            reason = error.message or error.code.name
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame) as error:
            reason = str(error)
        else:
            return True
        log.debug("a tenant's keys wait", extra={"tenant": tenant.id, "partition": index, "reason": reason})
        return False

    async def _hand_over(
        self, lane: int, index: int, epoch: int, tenant: TenantImage, topic: TopicImage, there: KeyRange
    ) -> None:
        """Send the tenant's keys of this partition to their new partitions."""
        names = await self.store.names(index, tenant)
        introduced = await self.store.introduced(index, epoch)
        config, loop = self._config, asyncio.get_running_loop()
        waiting: dict[int, list[CoordinatorRecord]] = {}  # by target; each request waits for its commit
        sizes: dict[int, int] = {}
        taken, sent_at = 0, loop.time()
        self._progress_at = sent_at

        async def send(target: int) -> None:
            nonlocal taken, sent_at
            del sizes[target]
            for part in _parts(waiting.pop(target), config.request_bytes_max, config.request_records_max):
                await self._send_until_taken(lane, target, tenant, topic.topic_id, [*introduced, *part])
                taken, sent_at = taken + len(part), loop.time()
                await self._report_progress(index, tenant, topic, taken)

        for begin in range(0, len(names), config.keys_at_once):
            some = names[begin : begin + config.keys_at_once]
            for name, records in await self.store.records(index, some):
                target = there.first + partition_for(name, there.count)
                waiting.setdefault(target, []).extend(records)
                sizes[target] = sizes.get(target, 0) + sum(map(_size, records[: config.request_records_max]))
            for target, size in list(sizes.items()):
                if size >= config.request_bytes_max or len(waiting[target]) >= config.request_records_max:
                    await send(target)
            if sizes and loop.time() - sent_at >= config.progress_s:
                await send(max(sizes, key=sizes.__getitem__))
        for target in list(waiting):
            await send(target)

    async def _report_progress(self, index: int, tenant: TenantImage, topic: TopicImage, taken: int) -> None:
        """A partition with many keys takes long: without a report the controller would take its fence for stuck. An
        attempt that only comes as far as an earlier one is no progress."""
        key, now = (tenant.id, tenant.keys_epoch, tenant.keys_phase, index), asyncio.get_running_loop().time()
        if taken <= self._taken.get(key, 0):
            return
        self._taken[key] = taken
        if now - self._progress_at >= self._config.progress_s:
            self._progress_at = now
            await self._report(tenant, topic, [])

    async def _send_until_taken(
        self, lane: int, target: int, tenant: TenantImage, topic_id: bytes, records: list[CoordinatorRecord]
    ) -> None:
        """As `_send`; a partition with many keys would not come to its end if each lost request began it again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.resend_s
        while True:
            try:
                return await self._send(lane, target, tenant, topic_id, records)
            except (ProtocolError, ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
                if loop.time() >= until or not self._is_current(tenant):
                    raise
            await asyncio.sleep(self._config.retry_s)

    def _is_current(self, tenant: TenantImage) -> bool:
        now = self._image().tenants.get(tenant.id)
        return now is not None and (now.keys_epoch, now.keys_phase) == (tenant.keys_epoch, tenant.keys_phase)

    async def _send(
        self, lane: int, target: int, tenant: TenantImage, topic_id: bytes, records: list[CoordinatorRecord]
    ) -> None:
        """Returns when the records are durable there. Raises ProtocolError and errors of the link."""
        partition = self._image().partition(topic_id, target)
        leader = -1 if partition is None else partition.leader
        if leader < 0:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the keys' new partition has no leader")
        if leader == self._broker()[0]:
            await self.store.take(target, tenant.id, tenant.keys_epoch, topic_id, records)
            return
        request = ImportKeysRequest(
            tenant=tenant.id,
            keys_epoch=tenant.keys_epoch,
            topic_id=schema_uuid(topic_id),
            partition_index=target,
            records=[  # a tombstone is not needed where the key does not exist yet
                ImportKeysRequest.KeyRecord(key=record.key, value=record.value)
                for record in records
                if record.value is not None
            ],
        )
        holder = self._links.setdefault((leader, lane), self._new_link())
        try:
            link = await holder.to(leader)
            response = await link.call(request, VERSION, self._config.call_timeout_s)
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
            holder.drop()
            raise
        if response.error_code:
            raise ProtocolError(known_error(response.error_code), f"broker {leader} does not take keys now")

    async def _report(self, tenant: TenantImage, topic: TopicImage, done: Done) -> bool:
        broker_id, broker_epoch = self._broker()
        row = TenantKeysReadyRequest.ReadyTenant
        request = TenantKeysReadyRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            topic_id=schema_uuid(topic.topic_id),
            tenants=[
                row(
                    tenant=tenant.id,
                    keys_epoch=tenant.keys_epoch,
                    phase=int(tenant.keys_phase),
                    partitions=[row.ReadyPartition(partition_index=i, leader_epoch=epoch) for i, epoch in done],
                )
            ],
        )
        try:
            await self._channel.call(request, VERSION, timeout_s=self._config.call_timeout_s)
        except (ControllerUnavailable, OutcomeUnknown, MalformedFrame) as error:
            log.debug("keys were not reported to the controller", extra={"tenant": tenant.id, "reason": str(error)})
            return False
        return True


class TenantKeyMoves:
    """Owns one task, which sleeps while no tenant moves, and otherwise hands over all moving tenants' keys in rounds.
    `handovers`: one for each kind of keys."""

    def __init__(self, handovers: Sequence[KeyHandover], config: KeyMovesConfig | None = None) -> None:
        self._handovers = handovers
        self._config = config or KeyMovesConfig()
        self._busy: dict[str, None] = {}  # ids of tenants whose keys move
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for tenant_id, old in delta.access.tenants.changed.items():
            tenant = image.tenants.get(tenant_id)
            if old is not None and tenant is not None and _keys_of(old) != _keys_of(tenant):
                for handover in self._handovers:
                    handover.store.keeping_changed(tenant.prefix)
            if tenant is not None and tenant.keys_phase is not KeysPhase.SETTLED:
                self._busy[tenant_id] = None
            elif tenant_id in self._busy:
                del self._busy[tenant_id]
                for handover in self._handovers:
                    handover.forget(tenant_id)
        if self._busy and not delta.is_empty:
            self._changed.set()
            if self._task is None and not self._is_stopped:
                self._task = asyncio.create_task(self._run(), name=duty("tenant-keys"))

    async def stop(self) -> None:
        """For good: metadata that still arrives begins nothing."""
        self._is_stopped = True
        await end_task(self._task)
        self._task = None
        for handover in self._handovers:
            handover.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self._busy:
                await self._changed.wait()
                continue
            is_whole = True
            for tenant_id in list(self._busy):
                for handover in self._handovers:
                    is_whole = await handover.advance(tenant_id) and is_whole
            try:
                async with asyncio.timeout(self._config.round_s if is_whole else self._config.retry_s):
                    await self._changed.wait()
            except TimeoutError:
                pass


def _keys_of(tenant: TenantImage) -> tuple[object, ...]:
    """The fields that decide where a tenant's keys are served."""
    return tenant.keys_cell, tenant.ids_cell, tenant.keys_target, tenant.keys_phase


def _size(record: CoordinatorRecord) -> int:
    return len(record.key) + len(record.value or b"")


def _parts(records: list[CoordinatorRecord], bytes_max: int, records_max: int) -> Iterator[list[CoordinatorRecord]]:
    """One by one: a group may have very many."""
    part: list[CoordinatorRecord] = []
    size = 0
    for record in records:
        record_size = _size(record)
        if part and (size + record_size > bytes_max or len(part) >= records_max):
            yield part
            part, size = [], 0
        part.append(record)
        size += record_size
    if part:
        yield part
