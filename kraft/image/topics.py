"""All topics, by name and by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kraft.image.partition_index import PartitionIndex
from kraft.image.partitions import PartitionImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import tenant_of


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Partitions of an internal topic that hold the keys of a cell's tenants."""

    cell: str
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def __contains__(self, partition: int) -> bool:
        return self.first <= partition < self.end


@dataclass(frozen=True, slots=True)
class TopicImage:
    """`partitions`: by index, ascending. `topic_id`: 16 bytes. `adopts_tier`: see TopicRecord. `ranges`: contiguous; an
    internal topic without ranges is one range for all."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage] = field(default_factory=dict)
    adopts_tier: bool = False
    ranges: tuple[KeyRange, ...] = ()

    def range_of(self, cell: str) -> KeyRange | None:
        return next((held for held in self.ranges if held.cell == cell), None)

    def range_with(self, partition: int) -> KeyRange | None:
        """The range of a partition; None if there are no ranges."""
        return next((held for held in self.ranges if partition in held), None)


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics by id, in an order that is the same in every process but otherwise arbitrary. `ids`: topic ids by
    name.

    `names_by_tenant`: internal names of tenants' topics, by tenant id, in order of creation. `index`: finds partitions
    by broker and by pending work.
    """

    by_id: ShardedMap[bytes, TopicImage] = field(default_factory=ShardedMap)
    ids: ShardedMap[str, bytes] = field(default_factory=ShardedMap)
    names_by_tenant: ShardedMap[str, Mapping[str, None]] = field(default_factory=ShardedMap)
    index: PartitionIndex = field(default_factory=PartitionIndex)
    partition_count: int = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[TopicImage]:
        return iter(self.by_id.values())

    def __contains__(self, name: str) -> bool:
        return name in self.ids

    @property
    def by_name(self) -> Mapping[str, TopicImage]:
        """The topics by name, whose order is that of `ids`."""
        return _ByName(self)

    def get(self, name: str) -> TopicImage | None:
        topic_id = self.ids.get(name)
        return None if topic_id is None else self.by_id[topic_id]

    def get_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.by_id.get(topic_id)

    def of_tenant(self, tenant_id: str) -> list[TopicImage]:
        """In order of creation; the cost is the number of results."""
        return list(self.iterate_tenant(tenant_id))

    def iterate_tenant(self, tenant_id: str) -> Iterator[TopicImage]:
        """As `of_tenant`, lazily."""
        for name in self.names_by_tenant.get(tenant_id, ()):
            yield self.by_id[self.ids[name]]

    def partition(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        topic = self.by_id.get(topic_id)
        return topic.partitions.get(partition) if topic is not None else None

    def partitions(self) -> Iterator[PartitionImage]:
        """Every partition of every topic."""
        for topic in self.by_id.values():
            yield from topic.partitions.values()


class _ByName(Mapping[str, TopicImage]):
    __slots__ = ("_topics",)

    def __init__(self, topics: TopicsImage) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> TopicImage:
        return self._topics.by_id[self._topics.ids[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._topics.ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics.ids)

    def __len__(self) -> int:
        return len(self._topics.ids)


def names_changed(
    base: ShardedMap[str, Mapping[str, None]], deleted: Iterable[TopicImage], created: Iterable[TopicImage]
) -> ShardedMap[str, Mapping[str, None]]:
    """`names_by_tenant` after a change; unchanged parts are shared."""
    changed: dict[str, dict[str, None]] = {}
    for topics, is_new in ((deleted, False), (created, True)):
        for topic in topics:
            tenant_id = tenant_of(topic.name)
            if tenant_id is None:
                continue
            names = changed.get(tenant_id)
            if names is None:
                names = changed[tenant_id] = dict(base.get(tenant_id, {}))
            if is_new:
                names[topic.name] = None
            else:
                names.pop(topic.name, None)
    if not changed:
        return base
    return base.changed({tenant_id: names or None for tenant_id, names in changed.items()})
