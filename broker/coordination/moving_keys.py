"""What the move of a tenant's keys needs of one kind of keys: groups or transactional ids. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from broker.coordination.shard import CoordinatorRecord, Now, Shard
from common.decision import Decision
from common.pacing import Work
from kraft.records import KeysPhase

ShardT_contra = TypeVar("ShardT_contra", bound=Shard, contravariant=True)


class MovingKeys(Protocol[ShardT_contra]):
    """`topic`: the internal topic with the keys. In `clearing` the new range is cleared, in `copying` the old one hands
    over. In the phases of `waits_in` the old one's shards make ready for that, or for another kind's move."""

    @property
    def topic(self) -> str: ...

    @property
    def clearing(self) -> KeysPhase: ...

    @property
    def copying(self) -> KeysPhase: ...

    @property
    def waits_in(self) -> tuple[KeysPhase, ...]: ...

    def cleared(self, shard: ShardT_contra, prefix: str, most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """Remove at most `most` keys with that prefix, which were left by an earlier move. Returns how many there were
        before."""
        ...

    def check_ready(self, shard: ShardT_contra, prefix: str, phase: KeysPhase, now: Now) -> Work[None]:
        """Raises ProtocolError while transactions must end first. Once it has returned in a phase, it always does,
        but for IDS_CLEARING and HOLDING: those only wait for a good moment."""
        ...

    def names(self, shard: ShardT_contra, prefix: str) -> Iterator[str | None]:
        """All keys with that prefix, None for duplicates. They may change meanwhile."""
        ...

    def records_of(self, shard: ShardT_contra, key: str) -> Work[list[CoordinatorRecord]]:
        """A key's durable state, as records that rebuild it elsewhere. Raises ProtocolError while a transaction must
        end first."""
        ...

    def introduced(self, shard: ShardT_contra, leader_epoch: int) -> list[CoordinatorRecord]:
        """Records that come before those of keys, each time that some are sent."""
        ...

    def accepted(
        self,
        shard: ShardT_contra,
        leader_epoch: int,
        records: Sequence[CoordinatorRecord],
        belongs: Callable[[str], bool],
    ) -> list[CoordinatorRecord]:
        """The records to append here of those that another shard hands over. `belongs`: whether a key may come.
        Raises ProtocolError: INVALID_REQUEST."""
        ...
