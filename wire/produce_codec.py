"""Produce by hand: requests read from positions of the receive buffer, replies packed straight into bytes.

Source: ProduceRequest and ProduceResponse of Apache Kafka 4.1; KIP-467 (record errors), KIP-951 (leader hints),
KIP-516 (topic ids, v13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wire.primitives import Endpoint, LeaderHint

PRODUCE = 0
PRODUCE_VERSIONS = (3, 13)


class ProducedPart(NamedTuple):
    """Records for one partition: `start:end` in the receive buffer, equal for null or empty records."""

    topic: bytes
    partition: int
    start: int
    end: int


class ProduceCall(NamedTuple):
    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    parts: list[ProducedPart]


class RecordError(NamedTuple):
    """One record that made its batch fail: its index in the batch, and why."""

    index: int
    message: bytes | None


class ProducedRow(NamedTuple):
    """The answer for one partition. `topic` is what the request carried; defaults are those of a success."""

    topic: bytes
    partition: int
    error: int
    base_offset: int
    log_append_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: bytes | None = None
    leader: LeaderHint | None = None


def decode_produce(buffer: bytearray, at: int, end: int, version: int) -> ProduceCall:
    """The body at `at` (after the request header) of a frame that ends at `end`. Raises MalformedFrame."""
    raise NotImplementedError


def encode_produce_response(
    version: int, correlation: int, rows: list[ProducedRow], throttle_ms: int = 0, endpoints: Sequence[Endpoint] = ()
) -> bytes:
    """A whole frame, length and header included; rows of one topic need not be neighbours."""
    raise NotImplementedError
