"""How the balancer's moves begin, end and are undone: each record of a move is committed with the change of its
partition. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from common.errors import ErrorCode, ProtocolError
from kraft.batches import MetadataRecord
from kraft.controller.elections import Election, Targets, change_partition
from kraft.controller.move_throttles import lifted, rate_lifted, throttles
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reassignment import start_reassignment
from kraft.controller.tenant_topics import Home, check_range
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, MoveOutcome, OperationKind
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import Cause, PartitionChangeRecord

Replicas = tuple[int, ...]
MOVE_COST = 60  # units of `common.pacing`, of a move that begins or ends
CAUSES = {
    OperationKind.BALANCE: Cause.BALANCE_MOVE,
    OperationKind.ADD: Cause.BROKER_FILLING,
    OperationKind.DRAIN: Cause.BROKER_DRAINING,
}


class PlannedMove(Struct, frozen=True):
    """A move that may begin. Fields as in `BalanceMoveRecord`."""

    topic: TopicImage
    partition: PartitionImage
    after: Replicas
    goal: str
    reason: str = ""
    source_before: float = 0.0
    source_after: float = 0.0
    target_before: float = 0.0
    target_after: float = 0.0
    agreed: tuple[str, ...] = ()
    bytes_to_copy: int = 0


def target_of(partition: PartitionImage) -> Replicas:
    """The replicas at the end of a reassignment; else the present ones."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


class MoveBatch:
    """The moves that one step of an operation begins."""

    def __init__(
        self, image: MetadataImage, policy: ControllerPolicy, operation: BalanceOperationRecord, now_ms: int
    ) -> None:
        self._image = image
        self._policy = policy
        self._operation = operation
        self._now_ms = now_ms
        self._targets = Targets(image, policy)
        self._moved: dict[str, None] = {}  # topics with copies
        self.moves: list[BalanceMoveRecord] = []
        self._changes: list[MetadataRecord] = []
        self.problem = ""
        """Why a move could not begin; the last one."""

    def begin(self, planned: PlannedMove) -> None:
        """Raises nothing: what cannot begin is retried later."""
        move = self._record(planned)
        try:
            change = self._change(planned, move)
        except ProtocolError as error:
            self.problem = f"{move.topic}-{move.partition}: {error.message or error.code.name}"
            return
        if change is None:
            return
        if change.adding is None or not change.adding:  # it has ended in the same commit
            move = msgspec.structs.replace(move, outcome=MoveOutcome.DONE, ended_ms=self._now_ms)
        else:
            self._moved[move.topic] = None
        self.moves.append(move)
        self._changes += [change, move]

    def records(self) -> list[MetadataRecord]:
        """Throttles first, then each change with its reason."""
        own = self._operation.bytes_per_second
        rate = own if own >= 0 else self._policy.balance.bytes_per_second
        limits = throttles(self._image, self._policy, self._moved, rate) if rate and self._moved else []
        return [*limits, *self._changes]

    def _record(self, planned: PlannedMove) -> BalanceMoveRecord:
        return BalanceMoveRecord(
            self._image.balance.next_move + len(self.moves),
            self._operation.id,
            planned.topic.topic_id,
            planned.topic.name,
            planned.partition.partition,
            target_of(planned.partition),
            planned.after,
            planned.goal,
            planned.reason,
            planned.source_before,
            planned.source_after,
            planned.target_before,
            planned.target_after,
            planned.agreed,
            planned.bytes_to_copy,
            self._now_ms,
        )

    def _change(self, planned: PlannedMove, move: BalanceMoveRecord) -> PartitionChangeRecord | None:
        cause = CAUSES[self._operation.kind]
        if move.is_of_leader and not planned.partition.is_reassigning:
            target = self._targets.of(planned.topic, cause, election=Election.PREFERRED)
            change = change_partition(planned.partition, msgspec.structs.replace(target, replicas=planned.after))
            if change is not None and change.leader != planned.after[0]:
                raise ProtocolError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "The new leader is not in sync.")
            return change
        Home(self._image, move.topic).check(planned.after)
        check_range(self._image, move.topic, move.partition, planned.after)
        return start_reassignment(
            self._image, planned.topic, planned.partition, planned.after, self._policy, self._targets, cause
        )


def ended_moves(image: MetadataImage, operation: BalanceOperationRecord, now_ms: int) -> list[BalanceMoveRecord]:
    """Records of the operation's moves that no longer run."""
    found = []
    for move in image.balance.running_moves(operation.id):
        outcome = _outcome(image.partition(move.topic_id, move.partition), move)
        if outcome is not MoveOutcome.RUNNING:
            found.append(msgspec.structs.replace(move, outcome=outcome, ended_ms=now_ms))
    return found


def _outcome(partition: PartitionImage | None, move: BalanceMoveRecord) -> MoveOutcome:
    if partition is None or target_of(partition) != move.after:
        return MoveOutcome.OVERTAKEN
    return MoveOutcome.RUNNING if partition.is_reassigning else MoveOutcome.DONE


def undone_moves(
    image: MetadataImage, policy: ControllerPolicy, operation: BalanceOperationRecord, now_ms: int
) -> tuple[list[MetadataRecord], str]:
    """Records that return the operation's running moves to where they came from, and why one cannot."""
    targets = Targets(image, policy)
    records: list[MetadataRecord] = []
    problem = ""
    for move in image.balance.running_moves(operation.id):
        topic = image.topics.get_by_id(move.topic_id)
        partition = image.partition(move.topic_id, move.partition)
        if topic is None or partition is None or _outcome(partition, move) is not MoveOutcome.RUNNING:
            continue  # it has ended
        try:
            # Not `cancel_reassignment`, which forgets which replica was preferred.
            change = start_reassignment(image, topic, partition, move.before, policy, targets, Cause.BALANCE_CANCELLED)
        except ProtocolError as error:
            problem = f"{move.topic}-{move.partition}: {error.message or error.code.name}"
            continue
        if change is not None:
            records += [change, msgspec.structs.replace(move, outcome=MoveOutcome.CANCELLED, ended_ms=now_ms)]
    return records, problem


def lifted_throttles(
    image: MetadataImage, policy: ControllerPolicy, ended: Sequence[BalanceMoveRecord]
) -> list[MetadataRecord]:
    """Removes the throttles of topics in which nothing moves any longer, with the rate if nothing else does. A tenant
    that moves to another cell keeps those of its topics."""
    records: list[MetadataRecord] = []
    for name in dict.fromkeys(move.topic for move in ended):
        topic = image.topics.get(name)
        if topic is None or image.topics.index.moving.has_topic(topic.topic_id):
            continue
        owner = image.tenants.owner(name)
        if owner is None or owner.id not in image.tenants.moving:
            records += lifted(image, name)
    if ended:
        records += rate_lifted(image, policy, also=_own_rates(image))
    return records


def _own_rates(image: MetadataImage) -> Iterable[int]:
    return (operation.bytes_per_second for operation in image.balance.operations.values())
