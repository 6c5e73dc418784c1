"""The first leader of a restored or rebuilt partition adopts its newest manifest in the bucket."""

from __future__ import annotations

from broker.tier.led import LedPartition, NotNow
from broker.tier.services import TierCalls
from object_store.errors import StoreError
from object_store.store import ObjectStore
from tiering.bucket.cluster_file import FIRST_INCARNATION, read_cluster_file
from tiering.bucket.keys import TierRoot
from tiering.manifests.manifest import DamagedManifest, read_manifest
from tiering.shard.shard_protocol import SEGMENTS_PER_REQUEST_MAX, Adopt


async def _check_store(store: ObjectStore, root: TierRoot, incarnation: int) -> None:
    """Check that the store belongs to the old cluster, because an unmounted directory looks empty too. Raises NotNow.

    A rebuilt cluster has changed an existing `cluster.json`; one that brokers created in an empty store was never
    changed.
    """
    try:
        found = await read_cluster_file(store, root)
    except (StoreError, ValueError) as error:
        raise NotNow(f"whose the object store is cannot be read: {error}") from error
    if found is None or (incarnation > FIRST_INCARNATION and found[0].created_ms == found[0].changed_ms):
        raise NotNow("the object store has no data of the old cluster")


async def adopt(led: LedPartition, store: ObjectStore, root: TierRoot, calls: TierCalls, incarnation: int) -> None:
    """Pass the manifest's segments to the tier's shard, unless that was done before. Raises Fenced, NotNow.

    `incarnation` is the cluster's.
    """
    record = led.known.record
    if record.adopted_version and not record.adopting:
        return
    try:
        manifest = await read_manifest(store, root, led.known.path)
    except (StoreError, DamagedManifest) as error:
        raise NotNow(f"the manifest cannot be read: {error}") from error
    if manifest is None:  # the tier held nothing, or this is another store
        await _check_store(store, root, incarnation)
        return
    head, segments = manifest
    log_start = head.log_start_offset if segments else max(head.log_start_offset, head.end_offset)
    size = SEGMENTS_PER_REQUEST_MAX
    for at in range(0, max(len(segments), 1), size):
        request = Adopt(
            led.leader_epoch,
            led.broker_epoch,
            head.version,
            log_start,
            list(segments[at : at + size]),
            at + size >= len(segments),
            led.partition.tier_generation,
        )
        await led.change(calls, lambda _, request=request: request)  # type: ignore[misc]
