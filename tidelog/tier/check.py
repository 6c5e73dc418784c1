"""Reads what `tidelog tier check` compares, in an order that raises no false alarms while the cluster writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from object_store.errors import ObjectMissing, StoreError
from tidelog.tier.access import read_state
from tidelog.tier.waiting import reported_wait
from tiering.bucket.keys import SegmentKey
from tiering.manifests.manifest import DamagedManifest, Manifest, read_manifest
from tiering.upkeep.checking import Disagreement, State, compare

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore
    from tidelog.admin.library_client import AdminClient
    from tiering.bucket.keys import PartitionPath, TierRoot
    from tiering.bucket.segment import SegmentId

LOOKS = 8
PATIENT_LOOKS = 60
PAUSE_S = 0.5


@dataclass(slots=True)
class Patience:
    """The remaining re-reads, over all partitions of one run, of manifests that are only behind."""

    looks: int = PATIENT_LOOKS


def check_partition(
    client: AdminClient,
    bucket: tuple[BlockingStore, TierRoot] | None,
    path: PartitionPath,
    patience: Patience,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda _: None,
) -> list[Disagreement]:
    """The disagreements about one partition. The state is read first, so changes meanwhile make the bucket newer, and
    everything is read again, a few times. Without `bucket` only the state is read.

    A manifest follows its state after a second or more, later under load: one that is behind is read again for as long
    as `patience` lasts.
    """
    found: list[Disagreement] = []
    look = 0
    while look < LOOKS or (patience.looks > 0 and _is_behind(found)):
        if look == LOOKS:
            rest = f"looking again for up to {patience.looks * PAUSE_S:.0f} s"
            say(f"{path.topic}-{path.partition}: the manifest is behind __tier_state; {rest}")
        if look:
            pause(PAUSE_S)
        if look >= LOOKS:
            patience.looks -= 1
        look += 1
        state = read_state(client, path.topic_id, path.partition)
        if isinstance(state, str):
            found = [Disagreement("state", f"__tier_state cannot be read: {state}")]
            continue
        if bucket is None:
            return []
        found = _compare(*bucket, path, state, say)
        if all(one.is_harmless for one in found):
            return found
    return found


def _is_behind(found: list[Disagreement]) -> bool:
    return all(one.is_behind or one.is_harmless for one in found)


def _compare(
    store: BlockingStore, root: TierRoot, path: PartitionPath, state: State, say: Callable[[str], None]
) -> list[Disagreement]:
    with reported_wait(say, f"the object store {store.name} to list {path.topic}-{path.partition}"):
        return _compare_read(store, root, path, state)


def _compare_read(store: BlockingStore, root: TierRoot, path: PartitionPath, state: State) -> list[Disagreement]:
    try:
        manifest: Manifest | None = store.wait(lambda: read_manifest(store.store, root, path))
    except (DamagedManifest, ObjectMissing) as error:
        return [Disagreement("manifest", str(error))]
    except StoreError as error:
        return [Disagreement("manifest", f"the object store does not answer: {error}")]
    objects: dict[SegmentId, int] = {}
    try:
        for info in store.list(root.partition_prefix(path)):
            key = root.parse_key(info.key)
            if isinstance(key, SegmentKey):
                objects[key.segment] = info.size
    except StoreError as error:
        return [Disagreement("objects", f"the object store does not answer: {error}")]
    return compare(state, manifest, objects)


def rows(path: PartitionPath, found: list[Disagreement]) -> Iterator[dict[str, Any]]:
    for one in found:
        yield {
            "topic": path.topic,
            "topic_id": path.topic_id.hex(),
            "partition": path.partition,
            "what": one.what,
            "disagreement": one.text,
            "harmless": one.is_harmless,
        }
