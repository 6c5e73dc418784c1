"""The first leader of a restored or rebuilt partition takes over what its newest manifest in the bucket says."""

from __future__ import annotations

from broker.tier.led import LedPartition, NotNow, TierCalls
from object_store.errors import StoreError
from object_store.store import ObjectStore
from tiering.keys import TierRoot
from tiering.manifest import DamagedManifest, read_manifest
from tiering.shard_protocol import SEGMENTS_PER_REQUEST_MAX, Adopt


async def adopt(led: LedPartition, store: ObjectStore, root: TierRoot, calls: TierCalls) -> None:
    """Hand the manifest's segments over to the tier's shard, unless that was done before. Raises Fenced, NotNow."""
    record = led.known.record
    if record.adopted_version and not record.adopting:
        return
    try:
        manifest = await read_manifest(store, root, led.known.path)
    except (StoreError, DamagedManifest) as error:
        raise NotNow(f"the manifest cannot be read: {error}") from error
    if manifest is None:
        return  # nothing was in the tier
    head, segments = manifest
    size = SEGMENTS_PER_REQUEST_MAX
    for at in range(0, max(len(segments), 1), size):
        request = Adopt(
            led.leader_epoch,
            led.broker_epoch,
            head.version,
            head.log_start_offset,
            list(segments[at : at + size]),
            at + size >= len(segments),
        )
        await led.change(calls, lambda _, request=request: request)  # type: ignore[misc]
