"""Coordinators whose answers a test decides, and transactional batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from broker.coordination.transactions.questions import Answered, PartitionQuestion
from broker.partitions.transactional_appends import Marker
from common.errors import ErrorCode
from records.batch import read_header
from tests.broker.replication_lab import Lab, batch
from wire.client import ConnectionLost

TXN_ID = "orders"


@dataclass
class ToldCoordinators:
    """Answers `answer`, or holds questions back while that is None."""

    answer: ErrorCode | None = ErrorCode.NONE
    asked: list[PartitionQuestion] = field(default_factory=list)
    held: list[Answered] = field(default_factory=list)

    def ask(self, question: PartitionQuestion, answered: Answered) -> None:
        self.asked.append(question)
        if self.answer is None:
            self.held.append(answered)
        else:
            answered(self.answer)

    def release(self, answer: ErrorCode = ErrorCode.NONE) -> None:
        """Answer what is held back."""
        held, self.held = self.held, []
        for answered in held:
            answered(answer)


def coordinated(lab: Lab, answer: ErrorCode | None = ErrorCode.NONE) -> ToldCoordinators:
    """The coordinators of all brokers of `lab`."""
    told = ToldCoordinators(answer)
    for broker in lab.brokers:
        broker.plane.transactions.reach(told)
    return told


def of_transaction(sequence: int = 0, *, producer_id: int = 7, epoch: int = 0, value: bytes = b"x") -> bytes:
    """One record of a transaction."""
    return batch(value, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)


def marker(
    *, epoch: int = 0, commit: bool = True, coordinator: int = 1, new_protocol: bool = False, producer_id: int = 7
) -> Marker:
    return Marker(producer_id, epoch, commit, coordinator, new_protocol)


def epochs_of(lab: Lab, is_wanted: Callable[[int], bool] = lambda attributes: True) -> list[int]:
    """The producer epochs of the leader's batches, in order."""
    data, at, epochs = lab[0].bytes(), 0, []
    while at < len(data):
        header = read_header(data, at)
        if is_wanted(header.attributes):
            epochs.append(header.producer_epoch)
        at += header.size
    return epochs


def silent_link() -> Any:
    """A link to a broker that answers nothing any more."""
    lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def call(request: object, version: int, timeout_s: float) -> Any:
        return await lost

    def close() -> None:
        if not lost.done():
            lost.set_exception(ConnectionLost("closed"))

    return SimpleNamespace(call=call, is_closed=False, close=close)
