"""The active controller's queue of writes, which it commits in groups.

A write is a function from image to decision. While one group is in flight, further writes gather. They are then decided
one after another, each on a scratch image with the earlier ones applied, and proposed together. Every reply waits for
the commit, even one that only reports that something of the same group exists. A long decision is work in slices, and a
group is proposed in pieces of bounded size, so that the loop serves heartbeats and the quorum in between.

The controller is active from when its LEADER_CHANGE is applied until it loses the leadership. If the outcome of a batch
is unknown, it claims the leadership again with another LEADER_CHANGE of the same term: everything before that is
committed or never will be, and the scratch image is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from common.decision import Decision
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.invariants import InvariantViolation, check
from common.lifecycle import duty, end_task
from common.pacing import SLICE_COST, Pacer, Work
from common.ports import Ports
from kraft.batch_codec import assembled_batch, encoding_records
from kraft.batches import Batch, BatchHeader, BatchKind, MetadataRecord, encode_batch
from kraft.controller.batching import chunks, pieces
from kraft.controller.first_metadata import first_records
from kraft.controller.policy import ControllerPolicy
from kraft.controller.state_machine import Applied, MetadataStateMachine, Verdict
from kraft.features import PIECES_LEVEL, TIDELOG_VERSION
from kraft.image.delta import replayed, replaying_all
from kraft.image.metadata import MetadataImage
from kraft.quorum.state_machine import AppliedResult, NotLeader, QuorumBusy
from kraft.records import PIECE_RECORDS_MAX, LeaderChangeRecord

log = logging.getLogger(__name__)

_COMMITTED = (Verdict.APPLIED, Verdict.DUPLICATE)

R = TypeVar("R")
Decided = Decision[MetadataRecord, R] | Work[Decision[MetadataRecord, R]]
"""The decision, or work that ends in it if it may take long."""
Decide = Callable[[MetadataImage], Decided[Any]]

GROUP_RECORDS_MAX = PIECE_RECORDS_MAX
"""Writes are added to a group until it has this many records."""
DECISION_COST, RECORD_COST = 50, 6
"""Units of `common.pacing`: per decision, and per record, which is applied to a scratch image and encoded."""
_LANE = "decisions"


class Quorum(Protocol):
    """`kraft.quorum.quorum.RaftQuorum` as the driver uses it."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def term(self) -> int: ...

    async def propose(self, data: bytes, timeout_s: float) -> AppliedResult: ...

    def has_quorum_contact(self) -> bool: ...

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None: ...


class DriverConfig(Struct, frozen=True):
    """Seconds, bytes and counts, each beside its setting. `rebuilt`: the first metadata of a cluster that is rebuilt
    from its object store."""

    propose_timeout_s: float = 5.0
    claim_pause_s: float = 0.1
    group_records_max: int = GROUP_RECORDS_MAX
    proposal_bytes_max: int = 3_500_000
    writes_max: int = 10_000
    rebuilt: MetadataImage | None = None  # tidelog.metadata.rebuild.file


class _Write(Struct):
    decide: Decide
    done: asyncio.Future[Any]


class _Group(Struct):
    """Writes that are proposed together, with their replies; `repeated` writes are decided again after the commit.
    `scratch` is `base` with the records applied."""

    base: MetadataImage
    scratch: MetadataImage
    records: list[MetadataRecord] = field(default_factory=list)
    answers: list[tuple[_Write, Any]] = field(default_factory=list)
    repeated: list[_Write] = field(default_factory=list)

    def hold(self, records: list[MetadataRecord], scratch: MetadataImage) -> None:
        """Add the records of one decision; `scratch` is the image after them."""
        self.scratch = scratch
        self.records += records


class ControllerDriver:
    """Owns one task. `on_active` is called with True when this node becomes active, and with False when it no longer
    is."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        quorum: Quorum,
        machine: MetadataStateMachine,
        policy: ControllerPolicy,
        config: DriverConfig,
        pacer: Pacer,
        *,
        on_active: Callable[[bool], None],
        fatal: Callable[[str], None],
    ) -> None:
        self._ports = ports
        self._node_id = node_id
        self._quorum = quorum
        self._machine = machine
        self._policy = policy
        self._config = config
        self._pacer = pacer
        self._on_active = on_active
        self._fatal = fatal
        self._writes: deque[_Write] = deque()
        self._wake = asyncio.Event()
        self._leading_term: int | None = None
        self._active = False
        self._sequence = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join. Call it before the quorum starts, so that no change of leadership is missed."""
        self._quorum.on_leadership(self._leadership_changed)
        self._task = asyncio.create_task(self._run(), name=duty("controller-driver"))

    async def stop(self) -> None:
        """Resign and stop; waiting writes fail. Idempotent."""
        self._leading_term = None
        self._resign()
        await end_task(self._task)
        self._task = None
        self._resign()

    @property
    def is_active(self) -> bool:
        """Whether this node has claimed the leadership and does not know that it lost it."""
        return self._active

    @property
    def image(self) -> MetadataImage:
        """The committed state."""
        return self._machine.image

    async def write(self, decide: Callable[[MetadataImage], Decided[R]]) -> R:
        """Decide on the newest state, commit, and return the reply.

        Raises ProtocolError: the decision's own; NOT_CONTROLLER if this controller is not active and nothing took
        effect; REQUEST_TIMED_OUT if its queue is full. Raises OutcomeUnknown if it may have taken effect.
        """
        if not self._active:
            raise not_controller()
        if len(self._writes) >= self._config.writes_max:
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "Too many requests wait for the controller.")
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._writes.append(_Write(decide, done))
        self._wake.set()
        return await done

    def _leadership_changed(self, is_leader: bool, term: int) -> None:
        self._leading_term = term if is_leader else None
        if not is_leader or term != self._machine.image.epoch:
            self._resign()
        self._wake.set()

    def _resign(self) -> None:
        """Discard speculative state at the end of the term: what was not proposed has had no effect."""
        was_active, self._active = self._active, False
        while self._writes:
            _fail(self._writes.popleft().done, not_controller())
        if was_active:
            log.info("the controller resigned", extra={"node": self._node_id, "epoch": self._machine.image.epoch})
            self._on_active(False)

    async def _run(self) -> None:
        try:
            while True:
                if self._active and self._writes:
                    await self._commit_group()
                elif self._leading_term is not None and not self._active:
                    await self._claim(self._leading_term)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception as error:  # including broken invariants: after this, no further decision may be made
            log.exception("the controller failed", extra={"node": self._node_id})
            self._resign()
            self._fatal(f"controller: {error}")

    async def _claim(self, term: int) -> None:
        """Become active in `term`: when the LEADER_CHANGE is applied, everything committed before it is too."""
        self._sequence += 1
        header = self._header(term, BatchKind.LEADER_CHANGE)
        try:
            verdict = await self._propose(encode_batch(Batch(header, [LeaderChangeRecord(self._node_id, term)])))
        except (NotLeader, QuorumBusy, OutcomeUnknown):
            verdict = None
        if verdict is Verdict.APPLIED and self._leading_term == term and self._machine.image.epoch == term:
            self._active = True
            log.info("the controller is active", extra={"node": self._node_id, "epoch": term})
            self._on_active(True)
            self._take_over()
        elif self._leading_term is not None:
            await asyncio.sleep(self._config.claim_pause_s)

    def _take_over(self) -> None:
        """The first write of a leadership: create the cluster if it is new."""
        loop = asyncio.get_running_loop()
        self._writes.appendleft(_Write(self._decide_take_over, loop.create_future()))

    def _decide_take_over(self, image: MetadataImage) -> Work[Decision[MetadataRecord, None]]:
        if image.cluster_id is not None:
            return Decision(None)
        records = yield from first_records(image, self._config.rebuilt, self._ports.random)
        return Decision(None, records)

    async def _commit_group(self) -> None:
        group = _Group(self._machine.image, self._machine.image)
        try:
            await self._decide_group(group)
            if not group.records:
                _answer(group)
                await asyncio.sleep(0)  # a long queue of reads must not hold the loop
                return
            verdict = await self._propose_all(group)
        except NotLeader:
            self._abandon(group, not_controller())
        except QuorumBusy:
            self._abandon(group, ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "The quorum is busy."), keep=True)
        except OutcomeUnknown:
            self._abandon(group, OutcomeUnknown("the commit of the request is not known"))
        except asyncio.CancelledError:
            self._abandon(group, OutcomeUnknown("the controller stopped"))
            raise
        else:
            if verdict in _COMMITTED:
                _answer(group)
                self._writes.extendleft(reversed(group.repeated))
            elif verdict is Verdict.REJECTED:
                log.critical("a batch of this controller's own was rejected", extra={"node": self._node_id})
                self._abandon(group, ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR), keep=True)
            else:
                self._abandon(group, not_controller())

    async def _decide_group(self, group: _Group) -> None:
        """Decide waiting writes, up to a group's size."""
        cost = 0
        while self._writes and len(group.records) < self._config.group_records_max:
            write = self._writes.popleft()
            if write.done.cancelled():  # the caller has gone
                continue
            group.answers.append((write, None))
            try:
                decision = write.decide(group.scratch)
                if not isinstance(decision, Decision):
                    decision = await self._pacer.run(decision, _LANE, own=True)
                await self._fold(group, decision.records)
            except ProtocolError as error:
                group.answers[-1] = (write, error)
                continue
            except InvariantViolation:
                raise
            except Exception:  # a bug in one decision must not end the service of all others
                log.exception("a decision failed", extra={"node": self._node_id})
                _fail(write.done, ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR))
                continue
            if decision.again:
                check(bool(decision.records), "a repeated decision must have changed something")
                group.repeated.append(write)
                del group.answers[-1]
                return  # the repeated decision needs the committed state
            group.answers[-1] = (write, decision.reply)
            cost += DECISION_COST + RECORD_COST * len(decision.records)
            if cost >= SLICE_COST:
                cost = 0
                await self._pacer.rest(_LANE)

    async def _fold(self, group: _Group, records: list[MetadataRecord]) -> None:
        """Add `records` to the group. Raises ReplayError if they do not fit, and adds none."""
        if not records:
            return
        if len(records) * RECORD_COST <= SLICE_COST:
            scratch = replayed(group.scratch, records)
        else:
            scratch = await self._pacer.run(replaying_all(group.scratch, records), _LANE, own=True)
        group.hold(records, scratch)

    async def _propose_all(self, group: _Group) -> Verdict:
        """Propose pieces in order; stops at the first that is not applied.

        Raises NotLeader if something else was applied meanwhile; OutcomeUnknown if that was not the first piece,
        because then part of the group has taken effect.
        """
        records = group.records
        level = group.base.features.get(TIDELOG_VERSION, 0)
        cut = pieces if level >= PIECES_LEVEL else chunks
        encoded = await self._pacer.run(encoding_records(records), _LANE, own=True)
        if self._machine.image is not group.base or not self._active:
            raise NotLeader(self._quorum.leader_id)
        sizes = list(map(len, encoded))
        for number, piece in enumerate(cut(records, sizes, self._config.proposal_bytes_max)):
            self._sequence += 1
            header = self._header(self._machine.image.epoch, BatchKind.RECORDS)
            try:
                verdict = await self._propose(assembled_batch(header, encoded[piece]))
            except (NotLeader, QuorumBusy) as error:
                if number:
                    raise OutcomeUnknown("a part was committed") from error
                raise
            if verdict not in _COMMITTED:
                if number:
                    raise OutcomeUnknown("a part was committed")
                return verdict
        return Verdict.APPLIED

    async def _propose(self, batch: bytes) -> Verdict:
        outcome = await self._quorum.propose(batch, self._config.propose_timeout_s)
        if not isinstance(outcome.result, Applied):
            raise OutcomeUnknown("the quorum gave no verdict")
        return outcome.result.verdict

    def _header(self, epoch: int, kind: BatchKind) -> BatchHeader:
        image = self._machine.image
        return BatchHeader(
            epoch,
            self._node_id,
            self._sequence,
            image.next_offset,
            kind,
            image.metadata_version,
            self._ports.clock.wall_ms(),
        )

    def _abandon(self, group: _Group, error: Exception, *, keep: bool = False) -> None:
        """The group fails. Unless `keep`, the leadership must be claimed again before the next decision."""
        for write in [*(write for write, _reply in group.answers), *group.repeated]:
            _fail(write.done, error)
        if not keep:
            self._resign()


def not_controller() -> ProtocolError:
    return ProtocolError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")


def _answer(group: _Group) -> None:
    for write, reply in group.answers:
        if isinstance(reply, ProtocolError):
            _fail(write.done, reply)
        elif not write.done.done():
            write.done.set_result(reply)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # marks it as retrieved, because the waiter may have been cancelled
