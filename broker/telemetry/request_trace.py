"""What is noted of a sampled Produce request: its arrival, append, commit and reply. No I/O.

Without a tracer a request costs one comparison; with one, a request that is not sampled costs two. Requests that are
served in slices, with very many partitions, are not sampled.
"""

from __future__ import annotations

from collections import deque
from random import Random

from msgspec import Struct

QUEUE_MAX = 1_000  # traces that wait to be sent; further ones are dropped
TEXT_LENGTH_MAX = 200  # of an attribute, because clients choose some
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

Attributes = dict[str, str | int]


class Span(Struct, frozen=True):
    """A part of a request, in seconds of the monotonic clock. `parent` is empty for the whole request."""

    name: str
    span_id: bytes
    parent: bytes
    began: float
    ended: float


class RequestTrace:
    """One request. Times are seconds of the monotonic clock; they are noted in the order of the methods, but for one
    that is answered while it is appended."""

    __slots__ = ("_appended", "_began", "_settled", "_tracer", "attributes", "error", "spans", "trace_id")

    def __init__(self, tracer: RequestTracer, began: float) -> None:
        self._tracer = tracer
        self._began = began
        self._appended: float | None = None
        self._settled: float | None = None
        self.trace_id = b""
        self.attributes: Attributes = {}
        self.error = 0
        self.spans: list[Span] = []

    def appended(self, now: float, attributes: Attributes) -> None:
        """Its batches are in the log, or rejected."""
        self._appended = now
        self.attributes = {
            name: value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value for name, value in attributes.items()
        }
        if self.spans:  # the reply went out meanwhile
            self._tracer.ended(self)

    def settled(self, now: float, error: int) -> None:
        """They are committed or written, as the request wants it, or not in time; `error` is the first of its rows."""
        self._settled = now
        self.error = error

    def replied(self, now: float) -> None:
        """The response is on its way."""
        settled = now if self._settled is None else self._settled
        appended = settled if self._appended is None else min(self._appended, settled)
        self.trace_id, own = self._tracer.draw(TRACE_ID_BYTES), self._tracer.draw(SPAN_ID_BYTES)
        parts = (("append", self._began, appended), ("commit", appended, settled), ("reply", settled, now))
        self.spans = [Span("Produce", own, b"", self._began, now)]
        self.spans += [Span(name, self._tracer.draw(SPAN_ID_BYTES), own, began, ended) for name, began, ended in parts]
        if self._appended is not None:
            self._tracer.ended(self)


class RequestTracer:
    """Samples at most `per_second` requests, at random distances so that clients with a beat are all met."""

    def __init__(self, rng: Random, per_second: float) -> None:
        self._random = rng
        self._interval_s = 1 / per_second
        self._due = float("-inf")
        self._ended: deque[RequestTrace] = deque()
        self.dropped = 0

    def begin(self, now: float) -> RequestTrace | None:
        """A trace of the request that arrives now, if it is sampled."""
        if now < self._due:
            return None
        self._due = now + self._interval_s * self._random.uniform(1.0, 1.5)
        return RequestTrace(self, now)

    def draw(self, size: int) -> bytes:
        """An id."""
        return self._random.randbytes(size)

    def ended(self, trace: RequestTrace) -> None:
        """The request is over."""
        if len(self._ended) >= QUEUE_MAX:
            self.dropped += len(trace.spans)
            return
        self._ended.append(trace)

    def take(self) -> list[RequestTrace]:
        """What has ended since the last call."""
        taken = list(self._ended)
        self._ended.clear()
        return taken
