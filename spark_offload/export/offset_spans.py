"""The offsets in a table, as arithmetic of spans that makes an export exact.

A span is the offsets [first, end) of one partition. `Spans` are sorted, do not touch each other, and none is empty. A
table's newest commit holds the spans of everything that was ever exported to it, and each run exports what is readable
and not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tiering.bucket.keys import NO_TENANT, PartitionPath

Span = tuple[int, int]
Spans = tuple[Span, ...]


class Place(NamedTuple):
    """One partition of one incarnation of a topic, in any cluster; `topic` is `<cluster>/<tenant>/<topic>-<id>`."""

    topic: str
    partition: int


Exported = dict[Place, Spans]


def place_of(cluster_id: str, path: PartitionPath) -> Place:
    return Place(f"{cluster_id}/{path.tenant or NO_TENANT}/{path.topic}-{path.topic_id.hex()}", path.partition)


def merged(spans: Iterable[Span]) -> Spans:
    """Any spans, empty ones too, as `Spans`."""
    found: list[Span] = []
    for first, end in sorted(one for one in spans if one[0] < one[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def without(spans: Spans, taken: Spans) -> Spans:
    """The part of `spans` that is not in `taken`."""
    found: list[Span] = []
    for first, end in spans:
        for taken_first, taken_end in taken:
            if taken_end <= first or taken_first >= end:
                continue
            found.append((first, taken_first))
            first = taken_end
        found.append((first, end))
    return merged(found)


def overlap(spans: Spans, others: Spans) -> bool:
    return without(spans, others) != spans


def with_spans(exported: Mapping[Place, Spans], more: Mapping[Place, Spans]) -> Exported:
    found = dict(exported)
    for place, spans in more.items():
        found[place] = merged((*found.get(place, ()), *spans))
    return found


def collide(exported: Mapping[Place, Spans], more: Mapping[Place, Spans]) -> bool:
    """Whether any offset is in both."""
    return any(overlap(spans, exported.get(place, ())) for place, spans in more.items())


def encode_exported(exported: Mapping[Place, Spans]) -> str:
    """`{"<topic>": {"<partition>": [[first, end], …]}}` as JSON, in order."""
    found: dict[str, dict[str, Spans]] = {}
    for place, spans in sorted(exported.items()):
        found.setdefault(place.topic, {})[str(place.partition)] = spans
    return json.dumps(found, separators=(",", ":"))


def decode_exported(text: str) -> Exported:
    """ValueError unless `encode_exported` wrote it."""
    try:
        topics: Any = json.loads(text)
        found = {
            Place(topic, int(partition)): tuple((int(first), int(end)) for first, end in spans)
            for topic, partitions in topics.items()
            for partition, spans in partitions.items()
        }
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no offsets of an export: {text[:200]!r}") from error
    if any(merged(spans) != spans for spans in found.values()):
        raise ValueError(f"offsets of an export that are not in order: {text[:200]!r}")
    return found
