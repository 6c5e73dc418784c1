"""What a rebuilt cluster has of the old one, and what it lacks according to the old cluster's exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from common.identifiers import uuid_text
from kraft.rebuilding.rebuild import Rebuild, RebuiltTopic
from object_store.store import ObjectStore
from records.events import Event, Events
from tidelog.moments import utc
from tiering.bucket.keys import SegmentKey, TierRoot
from tiering.upkeep.inventory import FoundTopic
from tiering.upkeep.undecided import UndecidedTransaction

Place = tuple[bytes, int]


async def count_objects(store: ObjectStore, root: TierRoot, found: Sequence[FoundTopic]) -> dict[Place, int]:
    """The number of segment objects in each partition with a directory but without a manifest. Raises StoreError."""
    counts: dict[Place, int] = {}
    for topic in found:
        for index, partition in topic.partitions.items():
            if partition.manifest is None:
                keys = [root.parse_key(info.key) async for info in store.list(root.partition_prefix(partition.path))]
                counts[topic.topic_id, index] = sum(isinstance(key, SegmentKey) for key in keys)
    return counts


class Position(NamedTuple):
    """A partition's begin and end, as exported at `seen_ms` by the leader of that epoch. The tier's end is -1 if it was
    not tiered, or unknown to the leader."""

    leader_epoch: int
    seen_ms: int
    high_watermark: int
    tier_end_offset: int
    log_start_offset: int


class RebuildReport:
    """`objects`: of partitions without a manifest; `moved`: the changes of `clamped`; `undecided`: by topic id, of
    which the new cluster aborts all."""

    def __init__(
        self,
        rebuild: Rebuild,
        found: Sequence[FoundTopic],
        positions: Sequence[Events],
        objects: Mapping[Place, int],
        undecided: Mapping[bytes, Sequence[UndecidedTransaction]],
    ) -> None:
        self._undecided = undecided
        self.moved: list[dict[str, Any]] = []
        self._rebuild = rebuild
        self._found = {topic.topic_id: topic for topic in found}
        self._objects = objects
        self._seen: dict[Place, Position] = {}
        self._dropped = 0
        for export in positions:
            for event in export.events:
                if event.get("event") != "position":
                    continue
                key = (bytes.fromhex(event["topic_id"]), int(event["partition"]))
                tier_end = event.get("tier_end_offset")
                seen = Position(
                    int(event["leader_epoch"]),
                    export.header.created_ms,
                    int(event["high_watermark"]),
                    -1 if tier_end is None else int(tier_end),
                    int(event.get("log_start_offset", 0)),
                )
                self._seen[key] = max(self._seen.get(key, seen), seen)

    def topics(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic.name,
                "id": uuid_text(topic.topic_id),
                "tiered": topic.is_tiered,
                "partitions": [self._partition(topic, index) for index in range(topic.count)],
            }
            for topic in self._rebuild.topics
        ]

    def undecided_rows(self) -> list[dict[str, Any]]:
        """Transactions that the new cluster aborts, because only the old brokers knew how they ended."""
        return [
            {
                "topic": topic.name,
                "partition": one.partition,
                "producer_id": one.producer_id,
                "epoch": one.producer_epoch,
                "from": one.first_offset,
            }
            for topic in self._rebuild.topics
            for one in self._undecided.get(topic.topic_id, ())
        ]

    def _partition(self, topic: RebuiltTopic, index: int) -> dict[str, Any]:
        there = topic.partitions.get(index)
        start, end = (0, 0) if there is None else (there.log_start_offset, there.end_offset)
        seen = self._seen.get((topic.topic_id, index))
        missing = None
        if seen is not None and seen.high_watermark > max(end, seen.log_start_offset):
            first = max(end, seen.log_start_offset)
            tiered = max(min(seen.tier_end_offset, seen.high_watermark), first)
            missing = {"from": first, "tiered_to": tiered, "to": seen.high_watermark, "seen": utc(seen.seen_ms)}
        return {"partition": index, "log_start_offset": start, "end_offset": end, "missing": missing}

    def sentences(self, has_groups: bool) -> list[str]:
        """Messages in the order of the topics."""
        sentences: list[str] = []
        for topic in self._rebuild.topics:
            if topic.has_left_tier and topic.partitions:
                sentences.append(f"{topic.name}: tiering was disabled for it, so it begins empty where its tier ended")
            elif not topic.is_tiered:
                sentences.append(f"{topic.name}: it was not tiered, so it begins empty at offset 0")
            for index in range(topic.count):
                sentences += [f"{topic.name}-{index}: {text}" for text in self._lacks(topic, index)]
        if not has_groups:
            sentences.append("no committed offsets were there")
        if self.moved:
            sentences.append(f"{len(self.moved)} committed offsets were above the tier's end, and were moved to it")
        if self._dropped:
            sentences.append(f"{self._dropped} committed offsets are left out: their partitions begin again")
        return sentences

    def _lacks(self, topic: RebuiltTopic, index: int) -> list[str]:
        """Messages about one partition."""
        found = self._found.get(topic.topic_id)
        partition = None if found is None else found.partitions.get(index)
        if partition is not None and partition.trouble:
            return [f"it stays without a leader until this is repaired: {partition.trouble}"]
        sentences: list[str] = []
        if opened := [one for one in self._undecided.get(topic.topic_id, ()) if one.partition == index]:
            why = "of which only the brokers knew how they ended"
            sentences.append(
                f"{len(opened)} transactions since offset {opened[0].first_offset}, {why}: they are aborted"
            )
        has_manifest = partition is not None and partition.manifest is not None
        seen_at = self._seen.get((topic.topic_id, index))
        if topic.is_tiered and not has_manifest and (seen_at is None or seen_at.high_watermark):
            objects = self._objects.get((topic.topic_id, index), 0)
            also = f"; {objects} segment objects are there, whose content is not known" if objects else ""
            sentences.append(f"no manifest of it is in the object store, so it begins empty at offset 0{also}")
        missing = self._partition(topic, index)["missing"]
        if missing is None:
            if not has_manifest and topic.is_tiered and seen_at is None:
                sentences.append("no export shows whether it ever had records")
            return sentences
        start, tiered, end, seen = (missing[name] for name in ("from", "tiered_to", "to", "seen"))
        if tiered > start:
            why = "its manifest does not name them" if has_manifest else "its manifest is gone"
            sentences.append(f"records {start} to {tiered - 1} were in the object store (as of {seen}), and {why}")
        if end > tiered:
            sentences.append(f"records {tiered} to {end - 1} were on the brokers alone (as of {seen})")
        return sentences

    def clamped(self, events: Sequence[Event]) -> list[Event]:
        """Offsets in tiered topics, limited to the tier's end."""
        by_id = {topic.topic_id.hex(): topic for topic in self._rebuild.topics}
        by_name = {topic.name: topic for topic in self._rebuild.topics}
        kept: list[Event] = []
        for event in events:
            if event.get("event") != "offset":
                continue
            known_id = event["topic_id"].strip("0")
            topic = by_id.get(event["topic_id"]) if known_id else by_name.get(event["topic"])
            there = None if topic is None else topic.partitions.get(int(event["partition"]))
            if topic is None or there is None:
                self._dropped += 1
                continue
            offset = min(int(event["offset"]), there.end_offset)
            if offset != event["offset"]:
                names = {name: event[name] for name in ("group", "topic", "partition", "offset")}
                self.moved.append(names | {"to": offset})
            kept.append(event | {"topic": topic.name, "offset": offset, "leader_epoch": -1})
        return kept
