"""What a broker says of its object store when it is asked how the tier is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.tier_description import TierDescriptions
from broker.tier.opening import LateStore
from object_store.errors import ObjectMissing, StoreDenied, StoreError, StoreUnavailable
from object_store.store import ObjectInfo
from tests.object_store.memory_store import MemoryStore
from tiering.bucket.keys import TierRoot
from tiering.bucket.verified import Run, Verifications
from tiering.shard.description import StoreStatus, decode_broker
from wire.messages import DescribeTierRequest, schema_uuid

BEGAN_MS, ENDED_MS = 1_000, 90_000
SEEN, NEWER = (
    Verifications(cluster_id="cluster"),
    Verifications(cluster_id="cluster", runs=(Run(began_ms=1, ended_ms=2),)),
)


class Clock:
    """Each call to the store takes from the first moment to the second."""

    def __init__(self) -> None:
        self.now_ms = BEGAN_MS

    def wall_ms(self) -> int:
        return self.now_ms


class RefusingStore(MemoryStore):
    """As S3 answers where a bucket is missing: HEAD has no body, so that what is missing may be the object alone."""

    def __init__(self, clock: Clock, error: StoreError) -> None:
        super().__init__()
        self.clock, self.error = clock, error

    async def head(self, key: str) -> ObjectInfo:
        raise ObjectMissing(self.name, "head", key, "there is no such object")

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.clock.now_ms = ENDED_MS
        raise self.error


def described(error: StoreError) -> StoreStatus:
    """What a broker without tiered partitions answers, of a cluster that has no file in the store yet."""
    clock: Any = Clock()

    async def open_store(_: str) -> RefusingStore:
        return RefusingStore(clock, error)

    async def known() -> Verifications:
        return NEWER

    plane: Any = SimpleNamespace(
        uri="s3://bucket",
        root=TierRoot("cluster"),
        store=LateStore("s3://bucket", "s3://bucket", open_store, clock),
        guard=SimpleNamespace(missing=None, stale=None),
        service=SimpleNamespace(led=[], copier=SimpleNamespace(counts=SimpleNamespace(refused_since_ms=0))),
        last_sweep=None,
        verified=SimpleNamespace(last=SEEN, known=known),
        export_trouble=SimpleNamespace(since_ms=0, reason=""),
    )
    nothing: Any = None
    coordinator: Any = SimpleNamespace(hosted=list)
    forwarder: Any = SimpleNamespace(image=SimpleNamespace(incarnation=1, cluster_id="cluster"))
    handler = TierDescriptions(0, lambda: plane, nothing, coordinator, forwarder, clock)
    request = DescribeTierRequest(topic_id=schema_uuid(bytes(16)), partition_index=-1, after_base_offset=-1)
    answer = asyncio.run(handler.describe_tier(nothing, request))
    report = decode_broker(answer.description)
    store = report.store
    assert store is not None
    assert report.verified == (NEWER if store.answers else SEEN), "the store is not asked again that does not answer"
    return store


@pytest.mark.parametrize("kind", [StoreDenied, StoreUnavailable])
def test_a_store_that_only_seems_to_answer_is_told_with_its_reason(kind: type[StoreError]) -> None:
    """And since when: from the beginning of the call that met it, which may have tried again for minutes."""
    status = described(kind("s3://bucket", "get", "cluster.json", "there is no such bucket"))
    assert (status.answers, status.reason, status.since_ms) == (False, "there is no such bucket", BEGAN_MS)


def test_a_store_without_anything_of_the_cluster_answers() -> None:
    status = described(ObjectMissing("s3://bucket", "get", "cluster.json", "there is no such object"))
    assert (status.answers, status.reason, status.since_ms) == (True, "", 0)
