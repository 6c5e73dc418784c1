"""The interface between the quorum and the state that it replicates: opaque commands in, results out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from common.pacing import Work


class StateMachine(Protocol):
    """Replicated by the quorum; the same commands in the same order must give the same state on every node.

    `applying` and `restoring` may not use time, randomness, hash order, the environment or any I/O: the proposer puts
    such values into the command. An exception in any of the three stops the node, as it would on every node.
    """

    def applying(self, index: int, data: bytes | memoryview) -> Work[object]:
        """Apply one committed command, a large one as a view of the log's entry. `index` grows by at least 1 from call
        to call, identically on all nodes. The work runs in slices and changes the state only at its end; it is dropped
        if a snapshot replaces the state.

        The result goes to the proposer, if it is this node and still waits. A command that cannot be decoded must
        return a result that says so, not raise: it is committed and will be applied again at each restart.
        """
        ...

    def snapshot(self) -> Work[bytes]:
        """Encode the state as of this call, whatever is applied meanwhile."""
        ...

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        """Decode a snapshot from some node's `snapshot`. The returned function, called on the event loop, replaces the
        state; nothing is applied meanwhile."""
        ...


class AppliedResult(Struct, frozen=True):
    """A proposal that is durable on a majority and applied on this node."""

    index: int
    term: int
    result: object


class NotLeader(Exception):
    """This node cannot accept the proposal, which has no effect anywhere."""

    def __init__(self, leader_id: int | None) -> None:
        super().__init__("the leader is not known" if leader_id is None else f"the leader is node {leader_id}")
        self.leader_id = leader_id


class QuorumBusy(Exception):
    """Uncommitted proposals have reached their limit of bytes; this one has no effect anywhere."""
