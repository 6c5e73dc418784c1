"""Fetch by hand, the follower's side: what a replica sends to its leader and reads from it, in one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wire.primitives import LeaderHint

REPLICA_FETCH_VERSION = 17


class ReplicaPart(NamedTuple):
    """Where a follower stands. `last_fetched_epoch` lets the leader find divergence (KIP-595); -1 for an empty log."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class ReplicatedRow(NamedTuple):
    """One partition of the leader's answer; its batches lie at `start:end` of the receive buffer."""

    topic: bytes
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    start: int
    end: int
    diverging: tuple[int, int] | None  # (epoch, end offset): truncate to it before fetching on
    leader: LeaderHint | None
    snapshot: tuple[int, int] | None  # (end offset, epoch)


class ReplicaFetched(NamedTuple):
    correlation: int
    throttle_ms: int
    error: int
    session_id: int
    rows: list[ReplicatedRow]


def encode_replica_fetch(
    correlation: int,
    replica: int,
    replica_epoch: int,
    session_id: int,
    session_epoch: int,
    wait_ms_max: int,
    bytes_min: int,
    bytes_max: int,
    topics: Mapping[bytes, Sequence[ReplicaPart]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """A whole frame. `topics` and `forgotten` are keyed by 16-byte topic id; `replica_epoch` is the broker epoch."""
    raise NotImplementedError


def decode_replica_fetch(buffer: bytearray, at: int, end: int) -> ReplicaFetched:
    """A response frame from its correlation id on. Raises MalformedFrame."""
    raise NotImplementedError
