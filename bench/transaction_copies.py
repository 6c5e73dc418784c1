"""Copies in transactions of librdkafka, which speaks the old protocol: the program of a test, or of a demonstration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PATIENCE_S = 60.0
HELD_S = 600.0  # one that holds may wait for commands on a busy machine


class Copies(threading.Thread):
    """Copies numbers into each partition of a topic, one per transaction, with the number as a group's offset. Every
    third one is aborted, and done again. One that `holds` sends the offset first, and goes no further until `go_on`.

    `done`: how many are committed. `failure`: what ended it.
    """

    def __init__(
        self, topic: str, partitions: int, group: str, transactional_id: str, *, holds: bool = False
    ) -> None:  # fmt: skip
        super().__init__(name=topic)
        self.topic, self.partitions = topic, partitions
        self.group, self.transactional_id = group, transactional_id
        self.done = 0
        self.failure: BaseException | None = None
        self.is_holding = False
        self._holds = holds
        self._may_go_on, self._stopped = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            attempts = 0
            while not self._stopped.is_set():
                attempts += 1
                commit = attempts % 3 != 0
                self._copy(self.done, commit=commit)
                self.done += commit
        except BaseException as error:
            self.failure = error

    def go_on(self) -> None:
        self._may_go_on.set()

    def stop(self) -> None:
        """It ends the transaction that it has begun."""
        self._stopped.set()
        self._may_go_on.set()

    def _copy(self, number: int, *, commit: bool) -> None:
        self.begin()
        if not self._holds:
            self.write(number)
        self.send_offset(number + 1)
        if self._holds:
            self.is_holding = True
            self._may_go_on.wait()
            self.write(number)
        self.end(commit=commit)

    def begin(self) -> None:
        """Nothing is to be done in the new protocol."""

    def write(self, number: int) -> None:
        raise NotImplementedError

    def send_offset(self, offset: int) -> None:
        raise NotImplementedError

    def end(self, *, commit: bool) -> None:
        raise NotImplementedError


class OldCopies(Copies):
    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        partitions: int,
        group: str,
        transactional_id: str,
        *,
        holds: bool = False,
    ) -> None:
        super().__init__(topic, partitions, group, transactional_id, holds=holds)
        timeout_ms = int(HELD_S * 1000)
        self._producer = Producer(
            {**client, "transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
        )
        self._producer.init_transactions(PATIENCE_S)
        self._consumer = Consumer({**client, "group.id": group})

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, number: int) -> None:
        for index in range(self.partitions):
            self._producer.produce(self.topic, f"{number}".encode(), partition=index)
        self._producer.flush(PATIENCE_S)

    def send_offset(self, offset: int) -> None:
        offsets, member = [TopicPartition(self.topic, 0, offset)], self._consumer.consumer_group_metadata()
        _repeated(lambda: self._producer.send_offsets_to_transaction(offsets, member, PATIENCE_S))

    def end(self, *, commit: bool) -> None:
        ends = self._producer.commit_transaction if commit else self._producer.abort_transaction
        _repeated(lambda: ends(PATIENCE_S))


def _repeated(call: Callable[[], None]) -> None:
    """As an application repeats what failed with a retriable error."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
