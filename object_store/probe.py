"""Whether a store keeps the conditions of conditional writes, found out by writing.

A server that ignores `If-None-Match` or `If-Match` would let a deposed leader's manifest overwrite its successor's.
Nothing stands in for them: a check before the write leaves a gap in which two writers both succeed. So such a store is
refused when the tier starts.
"""

from __future__ import annotations

from object_store.errors import ObjectExists, StoreUnfit, VersionConflict
from object_store.store import ObjectStore


async def probe_conditions(store: ObjectStore, key: str) -> None:
    """Writes `key`, which must be nobody's, and deletes it. Raises StoreUnfit, or what the store cannot do at all."""
    first = await store.put(key, b"1", create_only=True)
    try:
        await _expect_create_only(store, key)
        await store.replace(key, b"2", first.version)
        try:
            await store.replace(key, b"3", first.version)
        except VersionConflict:
            return
        raise StoreUnfit(store.name, "probe", key, "the store ignores If-Match")
    finally:
        await store.delete([key])


async def _expect_create_only(store: ObjectStore, key: str) -> None:
    try:
        await store.put(key, b"0", create_only=True)
    except ObjectExists:
        return
    raise StoreUnfit(store.name, "probe", key, "the store ignores If-None-Match")
