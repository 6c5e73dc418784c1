"""All topics, by name and by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kraft.image.partitions import PartitionImage
from kraft.image.tenants import tenant_of


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Partitions of an internal topic in which a cell keeps its tenants' keys."""

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
    """`partitions` by index, in rising order. `topic_id` is 16 bytes. `adopts_tier` as in TopicRecord. `ranges` follow
    one another; an internal topic without any is one range for everybody."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage] = field(default_factory=dict)
    adopts_tier: bool = False
    ranges: tuple[KeyRange, ...] = ()

    def range_of(self, cell: str) -> KeyRange | None:
        return next((held for held in self.ranges if held.cell == cell), None)

    def range_with(self, partition: int) -> KeyRange | None:
        """The range that a partition is in; None where there are no ranges."""
        return next((held for held in self.ranges if partition in held), None)


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """Views of the same topics. The mappings must not be changed by their readers.

    `names_by_tenant` holds the internal names of tenants' topics, by tenant id.
    """

    by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    names_by_tenant: Mapping[str, Mapping[str, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[TopicImage]:
        return iter(self.by_id.values())

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def get(self, name: str) -> TopicImage | None:
        return self.by_name.get(name)

    def get_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.by_id.get(topic_id)

    def of_tenant(self, tenant_id: str) -> list[TopicImage]:
        """In order of creation; the cost is that of what is found."""
        return [self.by_name[name] for name in self.names_by_tenant.get(tenant_id, ())]

    def partition(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        topic = self.by_id.get(topic_id)
        return topic.partitions.get(partition) if topic is not None else None

    def partitions(self) -> Iterator[PartitionImage]:
        """Every partition of every topic, in order of creation."""
        for topic in self.by_id.values():
            yield from topic.partitions.values()

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.by_id.values())


def names_changed(
    base: Mapping[str, Mapping[str, None]], deleted: Iterable[TopicImage], created: Iterable[TopicImage]
) -> Mapping[str, Mapping[str, None]]:
    """`names_by_tenant` after a change; what did not change is shared."""
    changed: dict[str, dict[str, None]] = {}
    for topics, is_new in ((deleted, False), (created, True)):
        for topic in topics:
            tenant_id = tenant_of(topic.name)
            if tenant_id is None:
                continue
            names = changed.setdefault(tenant_id, dict(base.get(tenant_id, {})))
            if is_new:
                names[topic.name] = None
            else:
                names.pop(topic.name, None)
    if not changed:
        return base
    return {tenant_id: names for tenant_id, names in {**base, **changed}.items() if names}
