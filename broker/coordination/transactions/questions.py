"""What partition leaders ask transaction coordinators."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from common.errors import ErrorCode

Answered = Callable[[ErrorCode], None]


class PartitionQuestion(NamedTuple):
    """Whether the partition is in the transaction; unless `verify_only`, it is to be added."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    verify_only: bool


class Coordinators(Protocol):
    """Asks coordinators, wherever they are."""

    def ask(self, question: PartitionQuestion, answered: Answered) -> None:
        """Call `answered` once, later, within a bounded time: NONE if the partition is in the transaction, else the
        coordinator's error, or NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE if it has no answer."""
        ...
