"""A trial whether a store obeys the conditions of conditional writes.

A server that ignores `If-None-Match` or `If-Match` would let a deposed leader's manifest overwrite its successor's. A
check before the write is no substitute, because two writers could both pass it. So `tidelog up` refuses such a store,
and no broker writes to it.
"""

from __future__ import annotations

import re

from object_store.errors import ObjectExists, ObjectMissing, StoreUnavailable, StoreUnfit, VersionConflict
from object_store.store import ObjectInfo, ObjectStore

_NAME = re.compile("[0-9a-f]{32}")


async def probe_conditions(store: ObjectStore, key: str) -> None:
    """Write and delete `key`, which must be unused. Raises StoreUnfit, or another StoreError of these calls."""
    try:
        first = await store.put(key, b"1", create_only=True)
        try:
            await _expect_create_only(store, key)
            await store.replace(key, b"2", first.version)
            await _expect_compare_and_set(store, key, first.version)
        finally:
            await store.delete([key])
    except (ObjectExists, ObjectMissing, VersionConflict) as error:  # an answer was lost, and its request repeated
        raise StoreUnavailable(store.name, "probe", key, "the trial write has to be repeated") from error


async def sweep_probes(store: ObjectStore, prefix: str, before_ms: int) -> list[ObjectInfo]:
    """Delete what trials have left that were written before that wall time; which these were. Their keys are `prefix`
    and a uuid. Raises StoreError.

    A PUT that failed for its writer and that the store took all the same leaves an object that its trial never deletes.
    """
    found = [
        info
        async for info in store.list(prefix)
        if info.modified_ms < before_ms and _NAME.fullmatch(info.key, len(prefix))
    ]
    if found:
        await store.delete([info.key for info in found])
    return found


async def _expect_create_only(store: ObjectStore, key: str) -> None:
    try:
        await store.put(key, b"0", create_only=True)
    except ObjectExists:
        return
    raise StoreUnfit(store.name, "probe", key, "the store ignores If-None-Match")


async def _expect_compare_and_set(store: ObjectStore, key: str, old_version: str) -> None:
    try:
        await store.replace(key, b"3", old_version)
    except VersionConflict:
        return
    raise StoreUnfit(store.name, "probe", key, "the store ignores If-Match")
