"""A broker's report of the tier to operators: JSON values, to which fields are only ever added."""

from __future__ import annotations

import msgspec

from tiering.bucket.segment import TieredSegment
from tiering.bucket.verified import Verifications


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The object store as seen by one broker. `since_ms` is the wall time since when it fails, 0 while it answers;
    `refused_since_ms`: since when no copy has succeeded, 0 while they do. `stale`: why this cluster may write nothing
    more."""

    uri: str
    answers: bool
    since_ms: int = 0
    reason: str = ""
    refused_since_ms: int = 0
    incarnation: int = 1
    stale: str | None = None
    export_trouble_since_ms: int = 0
    export_trouble: str = ""


class LedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A tiered partition on its leader. Until the claim is answered `tier_end_offset` is None and the counts are 0.

    `copy_lag_bytes` are those of closed segments that the tier does not hold yet. `deleting` segments wait for their
    delay. `rewritten` of the `segments` a job has made; below `erased_end_offset` records were erased, and
    `holds_erased` says that the leader's disk still has some of them. `failures` counts attempts in a row that came
    to nothing, and `waits_for` says why. `manifest_trouble` says why no further manifest is published. `unreadable`
    parts of segments were damaged or missing when they were last asked for, and `read_trouble` names the one that
    failed last.
    """

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    log_end_offset: int
    claimed: bool
    tier_end_offset: int | None = None
    segments: int = 0
    tier_bytes: int = 0
    copy_lag_bytes: int = 0
    copying: int = 0
    deleting: int = 0
    failures: int = 0
    waits_for: str | None = None
    manifest_version: int | None = None
    manifest_trouble: str | None = None
    rewritten: int = 0
    erased_end_offset: int = 0
    holds_erased: bool = False
    unreadable: int = 0
    read_trouble: str | None = None


class DroppedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a deleted topic, on its shard's host: its objects are deleted at `gone_ms` or soon after."""

    topic: str
    topic_id: str
    partition: int
    dropped_ms: int
    gone_ms: int
    log_start_offset: int
    tier_end_offset: int


class SweepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker's last sweep removed, and what it deliberately left."""

    objects: int
    bytes: int
    unfinished: int
    left: list[str]


class BrokerTier(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's report. Without a tier `store` is None. `more_dropped`: number of partitions that are not listed.
    `verified`: the outcomes of the last verifications, of all topics; None if it knows of none."""

    broker_id: int
    cluster_id: str
    store: StoreStatus | None = None
    partitions: list[LedStatus] = []
    dropped: list[DroppedStatus] = []
    more_dropped: int = 0
    sweep: SweepStatus | None = None
    verified: Verifications | None = None


class TierPage(msgspec.Struct, frozen=True, kw_only=True):
    """One partition in `__tier_state`, with its segments from some offset on. `known`: False if it has no state.
    `more`: number of further segments; continue after the last one's base offset."""

    known: bool
    topic: str
    tenant: str
    leader_epoch: int
    broker_id: int
    log_start_offset: int
    tier_end_offset: int
    dropped_ms: int
    state_offset: int
    segments: list[TieredSegment]
    more: bool


_encoder = msgspec.json.Encoder()
_broker_decoder = msgspec.json.Decoder(BrokerTier)
_page_decoder = msgspec.json.Decoder(TierPage)


def encode(value: BrokerTier | TierPage) -> bytes:
    return _encoder.encode(value)


def decode_broker(data: bytes) -> BrokerTier:
    """Raises ValueError for an invalid report, as below."""
    return _broker_decoder.decode(data)


def decode_page(data: bytes) -> TierPage:
    return _page_decoder.decode(data)
