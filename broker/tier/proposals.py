"""Decides proposals of jobs for the partitions that this broker leads: swaps, and readiness for an erasure.

At intervals the broker lists the store's prefix for proposals. For a proposal without a verdict, the partition's leader
checks the objects, lets the shard swap the segments, and writes the verdict. If a leader dies in between, the next one
asks the shard again, which knows what was done.

An output is accepted only while its object is young: the sweeper deletes no object before it is twice as old. A request
to the shard expires after half of the remaining time, however long it waits. So the sweeper, which knows the shard's
decisions, never deletes an object that is about to become part of a partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from broker.tier.config import TierConfig
from broker.tier.led import Fenced, LedPartition, NotNow, Refusal, check_owned
from broker.tier.service import TierService
from broker.tier.services import TierServices
from common.backoff import SLIGHT
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from object_store.errors import ObjectExists, ObjectMissing, StoreError
from object_store.store import ObjectInfo
from tiering.bucket.cluster_file import StaleCluster
from tiering.bucket.keys import ERASE_READY_INFIX, ERASE_SUFFIX, VERDICT_SUFFIX
from tiering.bucket.segment import TieredSegment, is_uuid
from tiering.jobs.proposal import (
    EraseReady,
    EraseRequest,
    Proposal,
    Verdict,
    decode_erase_request,
    decode_proposal,
    decode_verdict,
    encode,
)
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import RefusalCode, Swap
from tiering.shard.tier_shard import PartitionId

logger = logging.getLogger(__name__)

NAMES_MAX = 50_000  # listed names; further ones wait until the sweeper has made room
PROPOSAL_BYTES_MAX = 8 << 20
HEADS_AT_ONCE = 8

_LATER = (Fenced, NotNow, StaleCluster, StoreError, ProtocolError, OutcomeUnknown, ValueError)
Names = dict[str, ObjectInfo]


class _Addressee(msgspec.Struct, frozen=True):
    """The fields of a proposal that identify its partition."""

    topic_id: str
    partition: int


class _Received(NamedTuple):
    """A proposal, or why it is invalid. `partition` None: it names no partition."""

    partition: PartitionId | None
    proposal: Proposal | None
    problem: str = ""


class Proposals:
    """One per broker with a tier; call `start` and `stop` once."""

    def __init__(self, services: TierServices, service: TierService, config: TierConfig) -> None:
        self._services = services
        self._store, self._root, self._guard = services.store, services.root, services.guard
        self._clock = services.ports.clock
        self._chance = services.ports.random
        self._service = service
        self._config = config
        self._addressees: dict[str, PartitionId | None] = {}  # of proposals without a verdict
        self._requests: dict[str, EraseRequest | None] = {}
        self._targets: dict[tuple[str, int, int], int] = {}  # tier end to reach, by (request, partition, leader epoch)
        self._places = asyncio.Semaphore(config.proposals_max)
        self._heads = asyncio.Semaphore(HEADS_AT_ONCE)
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.accepted = 0
        self.refused = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("tier-proposals"))

    async def stop(self) -> None:
        """A swap under way is found by the next leader."""
        task, self._task = self._task, None
        await end_task(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SLIGHT.spread(self._config.proposals_interval_ms / 1000, self._chance))
            try:
                await self.run_round()
                self._failures = 0
            except StaleCluster as error:
                logger.error("proposals are no longer handled", extra={"reason": str(error)})
                return
            except _LATER as error:
                self._failures += 1
                if self._failures & (self._failures - 1) == 0:
                    logger.warning("proposals cannot be read", extra={"cause": str(error)})
            except Exception:  # otherwise no job would ever get a verdict
                logger.exception("a round over the proposals failed")

    # one round ---------------------------------------------------------------------------------------------

    async def run_round(self) -> None:
        """Handle the proposals for partitions led here. Raises StoreError and what the guard raises."""
        if not self._service.led:
            return
        names = await self._names()
        undecided = [name for name in names if is_uuid(name) and name + VERDICT_SUFFIX not in names]
        requests = [name.removesuffix(ERASE_SUFFIX) for name in names if name.endswith(ERASE_SUFFIX)]
        self._addressees = {uuid: self._addressees[uuid] for uuid in undecided if uuid in self._addressees}
        self._requests = {uuid: self._requests[uuid] for uuid in requests if uuid in self._requests}
        self._targets = {key: end for key, end in self._targets.items() if key[0] in self._requests}
        if not undecided and not requests:
            return
        await self._guard.check()
        led = {
            (one.partition.topic_id, one.partition.index): one
            for one in self._service.led
            if one.reconciled and one.is_current
        }
        proposed: list[tuple[LedPartition, str, _Received]] = []
        for uuid in undecided:
            if uuid not in self._addressees or self._addressees[uuid] in led:
                received = await self._receive(uuid, names[uuid])
                self._addressees[uuid] = received.partition
                if received.partition in led:
                    proposed.append((led[received.partition], uuid, received))
        asked: list[tuple[LedPartition, EraseRequest]] = []
        for uuid in requests:
            request = await self._request(uuid, names[uuid + ERASE_SUFFIX])
            if request is not None:
                asked += [(one, request) for one in _asked(request, names, led)]
        async with asyncio.TaskGroup() as group:
            for one, uuid, received in proposed:
                group.create_task(self._decide(one, uuid, names[uuid], received))
            for one, request in asked:
                group.create_task(self._make_ready(one, request))

    async def _names(self) -> Names:
        prefix = self._root.proposals_prefix
        names: Names = {}
        async for info in self._store.list(prefix):
            names[info.key.removeprefix(prefix)] = info
            if len(names) == NAMES_MAX:
                break
        return names

    async def _receive(self, uuid: str, info: ObjectInfo) -> _Received:
        if info.size > PROPOSAL_BYTES_MAX:
            return _Received(None, None)
        try:
            body = await self._store.get(info.key)
        except ObjectMissing:
            return _Received(None, None)
        received = await asyncio.to_thread(_read, uuid, body)
        if received.partition is None:
            logger.warning("proposal ignored", extra={"key": info.key, "cause": received.problem})
        return received

    async def _request(self, uuid: str, info: ObjectInfo) -> EraseRequest | None:
        if uuid not in self._requests:
            self._requests[uuid] = None
            if info.size > PROPOSAL_BYTES_MAX or self._age_ms(info) > self._config.sweep_age_ms:
                return None
            try:
                request = decode_erase_request(await self._store.get(info.key))
                self._requests[uuid] = request if request.uuid == uuid else None
            except (ValueError, ObjectMissing) as error:
                logger.warning("an erase request cannot be read", extra={"key": info.key, "cause": str(error)})
        return self._requests[uuid]

    def _age_ms(self, info: ObjectInfo) -> int:
        return self._clock.wall_ms() - info.modified_ms

    # swaps -------------------------------------------------------------------------------------------------

    async def _decide(self, led: LedPartition, uuid: str, info: ObjectInfo, received: _Received) -> None:
        async with self._places:
            try:
                verdict = await self._verdict(led, uuid, info, received)
                await self._write_verdict(verdict)
                self.accepted += verdict.accepted
                self.refused += not verdict.accepted
            except _LATER as error:  # the next round, or the next leader, decides
                fields = {"partition": repr(led), "proposal": uuid, "cause": str(error)}
                logger.warning("a proposal is not decided yet", extra=fields)

    async def _verdict(self, led: LedPartition, uuid: str, info: ObjectInfo, received: _Received) -> Verdict:
        """The verdict, once the shard has decided. Raises as `LedPartition.change`."""
        await check_owned(self._guard)
        proposal, problem = received.proposal, received.problem
        offset = -1
        if proposal is not None:
            problem, expires_ms = await self._problem(led.known, proposal, info)
            if not problem:
                try:
                    offset = await self._swap(led, proposal, expires_ms)
                except Refusal as error:
                    if error.reply.error == RefusalCode.NOT_CLAIMED:
                        raise
                    problem = error.reply.text
        if not led.is_current:  # another leader decides
            raise Fenced
        fields = {"partition": repr(led), "proposal": uuid, "reason": problem}
        logger.info("a proposal is refused" if problem else "a proposal is accepted", extra=fields)
        return Verdict(
            proposal=uuid,
            accepted=not problem,
            reason=problem,
            decided_ms=self._clock.wall_ms(),
            broker_id=self._service.node_id,
            leader_epoch=led.leader_epoch,
            tier_state_offset=offset,
        )

    async def _problem(self, tier: PartitionTier, proposal: Proposal, info: ObjectInfo) -> tuple[str, int]:
        """What the shard cannot check: (problem, or "" if it may decide; until when it may, in wall-clock milliseconds,
        0 for ever). Raises StoreError."""
        if proposal.path != tier.path:
            return f"the partition's name is {tier.path.tenant!r} {tier.path.topic}", 0
        incarnation = await self._guard.check()
        if proposal.incarnation != incarnation:
            return f"it was made for incarnation {proposal.incarnation} of the cluster, which is now {incarnation}", 0
        if any(tier.value_of(output.id) is not None for output in proposal.outputs):
            return "", 0  # outputs were accepted by an earlier leader; the shard knows
        if self._age_ms(info) > self._config.sweep_age_ms // 2:
            return "it is too old", 0
        found = await asyncio.gather(*(self._output_problem(tier, output) for output in proposal.outputs))
        oldest_ms = min((modified_ms for _, modified_ms in found), default=0)
        return next((problem for problem, _ in found if problem), ""), oldest_ms + self._config.sweep_age_ms * 3 // 4

    async def _output_problem(self, tier: PartitionTier, output: TieredSegment) -> tuple[str, int]:
        """The problem, or "", and when the output's object was written."""
        key = self._root.segment_key(tier.path, output.id)
        async with self._heads:
            try:
                info = await self._store.head(key)
            except ObjectMissing:
                return f"{key} is missing", 0
        problem = ""
        if info.size != output.object_bytes:
            problem = f"{key} has {info.size} bytes, not {output.object_bytes}"
        elif self._age_ms(info) > self._config.sweep_age_ms // 2:
            problem = f"{key} is so old that the sweeper may take it"
        return problem, info.modified_ms

    async def _swap(self, led: LedPartition, proposal: Proposal, expires_ms: int) -> int:
        """Swap. Returns the offset in `__tier_state` from which the swap is visible."""
        request = Swap(
            led.leader_epoch,
            led.broker_epoch,
            proposal.uuid,
            proposal.inputs,
            proposal.outputs,
            proposal.reaches_log_start,
            proposal.erase_end or 0,
            expires_ms,
        )
        done = await led.change(self._services.calls, lambda _: request)
        await self._service.swapped(led)
        return done.tier_state_offset if done is not None else -1

    async def _write_verdict(self, verdict: Verdict) -> None:
        key = self._root.verdict_key(verdict.proposal)
        try:
            await self._store.put(key, encode(verdict), create_only=True)
        except ObjectExists:
            other = decode_verdict(await self._store.get(key))
            if other.accepted != verdict.accepted:  # harmless, because jobs delete nothing: only the report is wrong
                fields = {"proposal": verdict.proposal, "accepted": verdict.accepted, "reason": other.reason}
                logger.error("two leaders have decided differently", extra=fields)

    # erasures ----------------------------------------------------------------------------------------------

    async def _make_ready(self, led: LedPartition, request: EraseRequest) -> None:
        """Roll the segment that was active when the request was seen, and answer when all of it is in the tier."""
        partition, log = led.partition, led.partition.log
        key = (request.uuid, partition.index, led.leader_epoch)
        end = self._targets.setdefault(key, log.log_end_offset)
        async with self._places:
            try:
                tier = led.known
                if max(tier.tier_end_offset, log.log_start_offset) < end:
                    if log.active.base_offset < end:
                        log.roll_now(self._clock.wall_ms())
                    self._service.consider_soon()
                    return
                await check_owned(self._guard)
                ready = EraseReady(
                    request=request.uuid,
                    topic_id=request.topic_id,
                    partition=partition.index,
                    tier_end_offset=tier.tier_end_offset,
                    log_start_offset=tier.log_start_offset,
                    ready_ms=self._clock.wall_ms(),
                    broker_id=self._service.node_id,
                    leader_epoch=led.leader_epoch,
                )
                if not led.is_current:
                    return
                ready_key = self._root.erase_ready_key(request.uuid, partition.index)
                await self._store.put(ready_key, encode(ready), create_only=True)
            except ObjectExists:
                return
            except _LATER as error:
                fields = {"partition": repr(led), "request": request.uuid, "cause": str(error)}
                logger.warning("a partition is not ready for an erasure yet", extra=fields)


def _asked(request: EraseRequest, names: Names, led: dict[PartitionId, LedPartition]) -> Sequence[LedPartition]:
    """The requested partitions led here that have not answered."""
    topic_id = bytes.fromhex(request.topic_id)
    return [
        led[topic_id, index]
        for index in dict.fromkeys(request.partitions)
        if (topic_id, index) in led and f"{request.uuid}{ERASE_READY_INFIX}{index}" not in names
    ]


def _read(uuid: str, body: bytes) -> _Received:
    try:
        addressee = msgspec.json.decode(body, type=_Addressee)
        partition = (bytes.fromhex(addressee.topic_id), addressee.partition)
    except ValueError as error:
        return _Received(None, None, str(error))
    try:
        proposal = decode_proposal(body)
    except ValueError as error:
        return _Received(partition, None, str(error))
    if proposal.uuid != uuid:
        return _Received(partition, None, f"its uuid field is {proposal.uuid}")
    return _Received(partition, proposal)
