"""What the quorum and the state it replicates agree on: opaque commands in, results out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from common.pacing import Work


class StateMachine(Protocol):
    """Replicated by the quorum; the same commands in the same order must give the same state on every node.

    `applying` and `restoring` may use neither time, chance, hash order, the environment nor any I/O: the proposer puts
    such values into the command. An exception in any of the three stops the node, as it would on every node.
    """

    def applying(self, index: int, data: bytes) -> Work[object]:
        """The replay of one committed command. `index` grows by at least 1 from call to call, in the same way
        everywhere. The work is done in parts, with others in between, and changes the state at its end alone; it is
        given up without an end when a snapshot replaces all state.

        The result goes to the proposer, when it is this node and still waits. A command that cannot be decoded
        must give a result that says so, not an exception: it is committed and will come again at each restart.
        """
        ...

    def snapshot(self) -> Work[bytes]:
        """The encoding of all state as of this call, whatever is applied while it works."""
        ...

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        """The decoding of a snapshot that `snapshot` of some node gave. Its result, called on the event loop, replaces
        all state; nothing is applied meanwhile."""
        ...


class AppliedResult(Struct, frozen=True):
    """A proposal that is durable on a majority and applied on this node."""

    index: int
    term: int
    result: object


class NotLeader(Exception):
    """This node cannot take the proposal, and the proposal has no effect anywhere."""

    def __init__(self, leader_id: int | None) -> None:
        super().__init__("the leader is not known" if leader_id is None else f"the leader is node {leader_id}")
        self.leader_id = leader_id


class QuorumBusy(Exception):
    """Proposals that wait for their commit fill their limit of bytes; this one has no effect anywhere."""
