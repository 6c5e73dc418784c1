"""Records on their way to a topic: a bounded number of them, at a rate, in transactions.

The client library has no bound on what it buffers, so a window of records and bytes that are not acknowledged yet is
kept here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from kafka.errors import KafkaError, KafkaTimeoutError

from tidelog.streams.record_lines import Outgoing

WINDOW_BYTES, WINDOW_RECORDS = 16 << 20, 20_000
RECORD_BYTES = 200  # what the library keeps of a record, beside it
PACE_S = 0.05  # how often a paced production pauses
FLUSH_S = 150.0  # longer than the client library tries to deliver a record


class Undelivered(Exception):
    """A record was not acknowledged."""

    def __init__(self, line: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.line = line
        self.error = error


class Producer(Protocol):
    """What is used of kafka-python's producer."""

    def send(
        self, topic: str, value: Any, key: bytes | None, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> Any: ...
    def flush(self, timeout: float | None = None) -> None: ...
    def begin_transaction(self) -> None: ...
    def commit_transaction(self) -> None: ...
    def abort_transaction(self) -> None: ...


class Window:
    """What is sent and not acknowledged. The library's thread reports each end; another thread waits."""

    def __init__(self, bytes_max: int = WINDOW_BYTES, records_max: int = WINDOW_RECORDS) -> None:
        self._changed = threading.Condition()
        self._bytes_max, self._records_max = bytes_max, records_max
        self._bytes = self._records = 0
        self.acknowledged = self.acknowledged_bytes = 0
        self.failure: Undelivered | None = None

    def enter(self, size: int) -> None:
        """Wait for room; one record has always room. Raises Undelivered once a record has failed."""
        with self._changed:
            while self.failure is None and self._records and self._is_full(size):
                self._changed.wait()
            if self.failure is not None:
                raise self.failure
            self._bytes += size
            self._records += 1

    def _is_full(self, size: int) -> bool:
        return self._bytes + size > self._bytes_max or self._records >= self._records_max

    def leave(self, size: int, line: int, error: BaseException | None) -> None:
        with self._changed:
            self._bytes -= size
            self._records -= 1
            if error is None:
                self.acknowledged += 1
                self.acknowledged_bytes += size
            elif self.failure is None or line < self.failure.line:
                self.failure = Undelivered(line, error)
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Whether all that was sent has ended, well or not, within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._records, timeout_s)

    def check(self) -> None:
        """Raises Undelivered."""
        if self.failure is not None:
            raise self.failure


class Pace:
    """At most so many records a second; 0 is without bound. What was missed is not made up for."""

    def __init__(self, per_second: float, pause: Callable[[float], None], now: Callable[[], float]) -> None:
        self._gap = 1 / per_second if per_second else 0.0
        self._pause, self._now = pause, now
        self._due = now()

    def wait(self) -> None:
        if not self._gap:
            return
        now = self._now()
        if self._due - now > PACE_S or self._gap > PACE_S:
            self._pause(self._due - now)
        self._due = max(self._due, now - PACE_S) + self._gap


class Production:
    """One topic's records; `transaction_records` is 0 for all of them in one transaction, None for none at all."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        pace: Pace,
        transaction_records: int | None = None,
        window: Window | None = None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._pace = pace
        self._transaction_records = transaction_records
        self.window = window or Window()
        self._in_transaction = 0
        self._is_left_open = False
        self.committed = 0

    def send(self, record: Outgoing, line: int) -> None:
        """Raises Undelivered for this record or one before it, and KafkaError."""
        self._pace.wait()
        size = record.size + RECORD_BYTES
        self.window.enter(size)
        if self._transaction_records is not None and not self._in_transaction:
            self._producer.begin_transaction()
        self._in_transaction += 1
        headers = list(record.headers)
        try:
            future = self._producer.send(
                self._topic, record, record.key, headers, record.partition, record.timestamp_ms
            )
        except Exception as error:
            self.window.leave(size, line, error)
            self.window.check()
            raise
        future.add_callback(lambda _: self.window.leave(size, line, None))
        future.add_errback(lambda error: self.window.leave(size, line, error))
        if self._transaction_records and self._in_transaction >= self._transaction_records:
            self._commit(FLUSH_S)

    def finish(self, timeout_s: float) -> None:
        """Until all is acknowledged, and committed. Raises Undelivered, and KafkaError."""
        self._settle(timeout_s)
        if self._transaction_records is not None and self._in_transaction:
            self._commit(timeout_s)

    def give_up(self, timeout_s: float) -> None:
        """After an error: what was sent is acknowledged, or the open transaction aborted, if that is possible."""
        try:
            if self._transaction_records is None:
                self._flush(timeout_s)
            elif self._in_transaction:
                self._producer.abort_transaction()
        except KafkaError:  # the error that led here is the one to tell
            self._is_left_open = self._transaction_records is not None

    def outcome(self) -> str:
        """What has become of the records, in words."""
        if self._transaction_records is None:
            return f"{_counted(self.window.acknowledged)} acknowledged"
        left = (
            "the open transaction is aborted after its timeout" if self._is_left_open else "no open transaction is left"
        )
        return f"{left}, {_counted(self.committed)} committed before"

    def _commit(self, timeout_s: float) -> None:
        """Raises Undelivered, and KafkaError. The library commits without a record whose time has run out, so each
        must have been acknowledged before it is asked to."""
        self._settle(timeout_s)
        try:
            self._producer.commit_transaction()
        except KafkaError:
            self.window.check()
            raise
        self.committed += self._in_transaction
        self._in_transaction = 0

    def _settle(self, timeout_s: float) -> None:
        """Until each record is acknowledged. Raises Undelivered, and KafkaError."""
        self._flush(timeout_s)
        self.window.check()

    def _flush(self, timeout_s: float) -> None:
        """Until each record has ended. Raises KafkaTimeoutError."""
        try:
            self._producer.flush(timeout_s)
        except KafkaTimeoutError:
            raise
        except KafkaError:
            pass  # of a batch that it divides because it was too large, the library says that it has not ended
        if not self.window.wait_empty(timeout_s):
            raise KafkaTimeoutError(f"records were not acknowledged within {timeout_s:g} seconds")


def _counted(records: int) -> str:
    return "1 record is" if records == 1 else f"{records} records are"


def monotonic_pace(per_second: float, pause: Callable[[float], None]) -> Pace:
    return Pace(per_second, pause, time.monotonic)
