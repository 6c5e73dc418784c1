"""Metadata records of what keeps a fleet level by itself: quotas, the health of brokers, the balancer's work.

They need `tidelog.version` 3.
"""

from __future__ import annotations

from enum import IntEnum

from kraft.records import RecordBase


class OperationKind(IntEnum):
    """What an operation of the balancer does. BALANCE: levels loads; ADD: fills new brokers; DRAIN: empties brokers;
    RELIEVE: begins the move of a tenant off an overloaded cell, and has ended with that."""

    BALANCE = 1
    ADD = 2
    DRAIN = 3
    RELIEVE = 4


class OperationState(IntEnum):
    """CANCELLING: its running moves are being undone."""

    RUNNING = 1
    PAUSED = 2
    CANCELLING = 3
    DONE = 4
    CANCELLED = 5

    @property
    def has_ended(self) -> bool:
        return self in (OperationState.DONE, OperationState.CANCELLED)


class MoveOutcome(IntEnum):
    """What became of a move. OVERTAKEN: another request moved the partition, or its topic was deleted."""

    RUNNING = 0
    DONE = 1
    CANCELLED = 2
    OVERTAKEN = 3


Entity = tuple[tuple[str, str | None], ...]
"""Whom a quota is for, see `kraft.image.client_quotas`: pairs of type and name."""


class ClientQuotaRecord(RecordBase, tag=24, frozen=True, array_like=True, gc=False):
    """All quotas of one entity; a later record of the same entity replaces it. `values`: by key, at least one."""

    entity: Entity
    values: dict[str, float]
    actor: str = ""


class RemoveClientQuotaRecord(RecordBase, tag=25, frozen=True, array_like=True, gc=False):
    """The entity has no quotas any more."""

    entity: Entity
    actor: str = ""


class BalanceOperationRecord(RecordBase, tag=27, frozen=True, array_like=True, gc=False):
    """A complete operation of the balancer; a later record with the same `id` replaces it.

    `brokers`: those that are filled or emptied. `reason`: why it began. `moves_max` 0 and `bytes_per_second` -1 stand
    for the settings. `moves_begun`, `moves_done` and `bytes_to_copy` count its moves so far. `actor` stays in the
    image, because the history names it.
    """

    id: int
    kind: OperationKind
    brokers: tuple[int, ...]
    state: OperationState
    reason: str = ""
    begun_ms: int = 0
    ended_ms: int = 0
    moves_max: int = 0
    bytes_per_second: int = -1
    moves_begun: int = 0
    moves_done: int = 0
    bytes_to_copy: int = 0
    actor: str = ""


class BalanceMoveRecord(RecordBase, tag=28, frozen=True, array_like=True, gc=False):
    """A move of one partition's replicas or leadership, with its reason; a later record with the same `number` replaces
    it. It is committed together with the change of the partition.

    `before` and `after`: the replicas, the preferred leader first; the same brokers if only the leadership moves.
    `goal`: what asked for it. `source_before` and `source_after`: the goal's value of the broker that gives,
    `target_before` and `target_after`: of the one that takes. `agreed`: the goals that were asked and accepted it.
    `bytes_to_copy`: of the new replicas, as far as known.
    """

    number: int
    operation: int
    topic_id: bytes
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    goal: str
    reason: str = ""
    source_before: float = 0.0
    source_after: float = 0.0
    target_before: float = 0.0
    target_after: float = 0.0
    agreed: tuple[str, ...] = ()
    bytes_to_copy: int = 0
    begun_ms: int = 0
    ended_ms: int = 0
    outcome: MoveOutcome = MoveOutcome.RUNNING

    @property
    def is_of_leader(self) -> bool:
        """Whether only the leadership moves."""
        return set(self.before) == set(self.after)
