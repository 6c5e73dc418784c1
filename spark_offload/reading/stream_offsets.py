"""The arithmetic of stream offsets: `{"<topic>-<topic id>": {"<partition>": next offset}}`.

A topic that was deleted and made again is another one, so a checkpoint never goes on in it at the old one's offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiering.bucket.keys import PartitionPath, parse_topic_directory

StreamOffset = dict[str, dict[str, int]]


class Place(NamedTuple):
    """One partition of one incarnation of a topic, as a stream offset names it."""

    directory: str
    partition: int

    @property
    def words(self) -> str:
        parsed = parse_topic_directory(self.directory)
        return f"{parsed[0] if parsed else self.directory}-{self.partition}"


Places = dict[Place, int]


def place_of(path: PartitionPath) -> Place:
    return Place(f"{path.topic}-{path.topic_id.hex()}", path.partition)


def decode_offset(offset: Mapping[str, Mapping[str, int]]) -> Places:
    """Decodes a checkpoint. Raises ValueError if it was not written by `encode_offset`."""
    places = {}
    for directory, partitions in offset.items():
        if parse_topic_directory(directory) is None:
            raise ValueError(f"no offset of this source: {directory!r}")
        for partition, next_offset in partitions.items():
            places[Place(directory, int(partition))] = int(next_offset)
    return places


def encode_offset(places: Places) -> StreamOffset:
    encoded: StreamOffset = {}
    for place, next_offset in sorted(places.items()):
        encoded.setdefault(place.directory, {})[str(place.partition)] = next_offset
    return encoded


def limited(start: Places, end: Places, rows_max: int) -> Places:
    """An offset between `start` and `end` that is at most `rows_max` offsets ahead of `start`.

    Each partition advances in proportion to what it has; those with the least get theirs in full first, so something
    moves as long as there is anything. Where compaction left gaps, there are fewer rows than offsets.
    """
    left = rows_max
    waiting = sorted((end[place] - start[place], place) for place in end if end[place] > start[place])
    total = sum(size for size, _ in waiting)
    if total <= rows_max:
        return end
    found = dict(start)
    for size, place in waiting:
        share = min(size, max(1, left * size // total)) if left else 0
        found[place] = start[place] + share
        left -= share
        total -= size
    return found
