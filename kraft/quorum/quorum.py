"""The quorum of controllers: Raft over `common.ports`, for one replicated state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.ports import Address, Ports
from kraft.quorum.state_machine import AppliedResult, StateMachine

MIB = 1 << 20


@dataclass(slots=True)
class QuorumConfig:
    """Seconds and bytes. The defaults suit voters in one region."""

    election_timeout_min_s: float = 0.4
    election_timeout_max_s: float = 0.8
    heartbeat_interval_s: float = 0.05
    leader_fallback_timeout_s: float = 1.0
    proposal_bytes_max: int = 4 * MIB
    inflight_bytes_max: int = 32 * MIB
    compaction_entries_min: int = 20_000
    compaction_bytes_min: int = 64 * MIB
    snapshot_bytes_max: int = 512 * MIB
    replace_voter: bool = False
    listen: Address | None = None


class RaftQuorum:
    """One voter. All methods belong on the event loop that ran `start`.

    `voters` holds every voter's id and address, this node included, the same on all of them. `directory` is below
    `ports.disk`'s root and is used by nothing else. `fatal` is called at most once, when the node must stop (a disk
    error, an exception in the state machine, a broken invariant); from then on the quorum is silent.
    """

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        voters: dict[int, Address],
        directory: str,
        secret: bytes,
        state_machine: StateMachine,
        config: QuorumConfig,
        *,
        fatal: Callable[[str], None],
    ) -> None: ...

    async def start(self) -> None:
        """Recover from disk, listen and take part. Returns when the node votes, not when there is a leader.

        Raises VoterRefused when this voter may not start, StorageFailure for a damaged directory, OSError when the
        address cannot be bound.
        """

    async def stop(self) -> None:
        """Hand leadership over when this node has it, then leave. Proposals that wait get OutcomeUnknown."""

    @property
    def is_leader(self) -> bool:
        """Elected, and every entry of earlier terms is applied here; another node may believe the same of itself."""

    @property
    def leader_id(self) -> int | None:
        """The node that this one believes to be the leader."""

    @property
    def term(self) -> int:
        """The Raft term: the controller epoch. It never falls, also across restarts."""

    @property
    def applied_index(self) -> int:
        """Index of the last command that the state machine has seen."""

    async def propose(self, data: bytes, timeout_s: float) -> AppliedResult:
        """Replicate `data` and apply it.

        Raises NotLeader or QuorumBusy (no effect anywhere), OutcomeUnknown (it may yet be applied), ValueError when
        it is larger than `proposal_bytes_max`.
        """

    def has_quorum_contact(self) -> bool:
        """This node leads and a majority answered it within `leader_fallback_timeout_s`."""

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Call back `(is_leader, term)` at each change, on the loop, outside of `apply`. Exceptions are fatal."""

    async def transfer_leadership(self, timeout_s: float) -> bool:
        """Let the most advanced follower lead; True when this node follows at the end."""
