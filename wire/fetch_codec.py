"""Fetch by hand, the serving side: requests from positions of the receive buffer, replies as bytes and file regions.

Source: FetchRequest and FetchResponse of Apache Kafka 4.1; KIP-227 (sessions), KIP-392 (rack), KIP-516 (topic ids),
KIP-595 (diverging epoch, current leader, snapshot id), KIP-903 (replica state), KIP-951 (node endpoints).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wire.outgoing import FileRegion, Part
from wire.primitives import Endpoint, LeaderHint

FETCH = 1
FETCH_VERSIONS = (4, 18)


class FetchPart(NamedTuple):
    """Epochs are -1 where the version lacks them or the client does not say."""

    topic: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class FetchCall(NamedTuple):
    """`replica` is -1 for a consumer. `session_epoch` -1 means no session, 0 asks for a new one (KIP-227)."""

    replica: int
    replica_epoch: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation: int
    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[bytes, int]]
    rack: bytes
    cluster_id: bytes | None


class FetchedRow(NamedTuple):
    """The answer for one partition. `aborted` holds (producer id, first offset), None for read_uncommitted."""

    topic: bytes
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileRegion | bytes | bytearray | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_replica: int = -1
    diverging: tuple[int, int] | None = None  # (epoch, end offset)
    leader: LeaderHint | None = None
    snapshot: tuple[int, int] | None = None  # (end offset, epoch)


def decode_fetch(buffer: bytearray, at: int, end: int, version: int) -> FetchCall:
    """The body at `at` (after the request header) of a frame that ends at `end`. Raises MalformedFrame."""
    raise NotImplementedError


def encode_fetch_response(
    version: int,
    correlation: int,
    error: int,
    session_id: int,
    rows: list[FetchedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> list[Part]:
    """A whole frame as bytes and regions in turn; rows keep their order within a topic."""
    raise NotImplementedError
