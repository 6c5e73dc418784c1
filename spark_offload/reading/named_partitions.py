"""Whether the partitions that a reader names are partitions of the topic at all.

A topic's partitions are numbered from 0 without gaps, so one below the highest that the tier knows is there, whether
anything of it was copied yet or not. Beyond that the controllers' newest export tells, which is looked at only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from object_store.store import ObjectStore
from spark_offload.options import OptionError
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import METADATA, newest_exports


async def check_named(
    store: ObjectStore, root: TierRoot, topic: tuple[str, bytes], tiered: Sequence[int], named: Sequence[range]
) -> None:
    """OptionError when one that is `named` is not there; `topic` is its name and id, `tiered` the numbers of its
    partitions with a place in the tier. Raises StoreError."""
    name, topic_id = topic
    in_tier = max(tiered, default=-1) + 1
    if not _beyond(named, in_tier):
        return
    exported = await _exported_count(store, root, topic_id)
    missing = _beyond(named, max(in_tier, exported))
    if not missing:
        return
    noun = "partition" if len(missing) == 1 and len(missing[0]) == 1 else "partitions"
    known = f"it has {_spans_of(max(in_tier, exported))}"
    if not exported:
        known = f"the tier has {_spans_of(in_tier)} of it, and no export of the cluster's metadata knows more"
    texts = dict.fromkeys(_text(span) for span in missing)
    raise OptionError(
        f"{store.name}, cluster {root.cluster_id}: topic {name!r} has no {noun} {', '.join(texts)}: {known}"
    )


def _beyond(named: Sequence[range], count: int) -> list[range]:
    """The named numbers that are not below `count`."""
    return [range(max(span.start, count), span.stop) for span in named if span.stop > count]


async def _exported_count(store: ObjectStore, root: TierRoot, topic_id: bytes) -> int:
    """The topic's number of partitions; 0 if no export has the topic."""
    numbers = [
        event["partition"]
        for export in await newest_exports(store, root, METADATA)
        for event in export.events
        if event.get("event") == "partition" and event.get("topic_id") == topic_id.hex()
    ]
    return max((number for number in numbers if isinstance(number, int)), default=-1) + 1


def _spans_of(count: int) -> str:
    return "none" if not count else "0 alone" if count == 1 else f"0 to {count - 1}"


def _text(span: range) -> str:
    return str(span.start) if len(span) == 1 else f"{span.start}-{span.stop - 1}"
