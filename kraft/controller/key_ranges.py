"""The ranges of internal topics' partitions that cells own, so that tenants' groups are on their cell's brokers. No
I/O.

With one cell, a topic is one range for all. When another cell appears, the existing partitions become the range of the
cell that holds most of them, and each further cell gets a range of as many new partitions after it, on its own brokers.
So no key ever changes its partition: operators' keys and those of existing tenants stay in the first range until a
tenant's move takes its keys along. Topics that are one range for all are divided together, and begin with the same
cell. Before `tidelog.version` 4 all cells share `__transaction_state`, which is divided when the version is raised.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from common.errors import ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.move_throttles import may_throttle_ranges, ranges_lifted, throttles
from kraft.controller.new_partitions import partition_records
from kraft.controller.placement import ReplicaPlacer
from kraft.controller.policy import ControllerPolicy, keyed_topic_factor
from kraft.controller.range_growth import RangeGrowth
from kraft.controller.reassignment import start_reassignment
from kraft.controller.stepper import Step
from kraft.controller.tenant_topics import usable
from kraft.features import ACCESS_LEVEL, IDS_LEVEL, TIDELOG_VERSION
from kraft.image.brokers import BrokerImage
from kraft.image.cells import DEFAULT_CELL, brokers_of, cell_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import Cause, KeyRangeRecord, KeysPhase
from kraft.topic_names import CLIENT_KEY_TOPICS, GROUP_TOPIC, TRANSACTION_TOPIC

RANGE_COST = 50  # of a topic that is looked at, units of `common.pacing`
TENANTS_AT_ONCE = 100


def keyed_topics(image: MetadataImage) -> tuple[str, ...]:
    """The topics of which each cell has a range for its tenants' keys."""
    level = image.features.get(TIDELOG_VERSION, 0)
    if level < ACCESS_LEVEL:
        return ()
    return CLIENT_KEY_TOPICS if level >= IDS_LEVEL else (GROUP_TOPIC,)


def founding_cell(image: MetadataImage, policy: ControllerPolicy, factor: int) -> tuple[str, int] | None:
    """The cell on whose brokers the first range of a new internal topic is placed, and its replication factor if it
    cannot hold `factor`; None for all brokers.

    That is the default cell, or the first by name, among those that could hold tenants' topics.
    """
    cells = _peopled(image)
    if len(cells) < 2 or not keyed_topics(image):
        return None
    live = {cell: _live(image, brokers) for cell, brokers in cells.items()}
    able = [cell for cell in cells if live[cell] >= max(1, min(factor, policy.default_replication_factor))]
    first = next((topic.ranges[0].cell for topic in _keyed(image) if topic.ranges), DEFAULT_CELL)
    found = min(able, key=lambda cell: (cell != first, cell != DEFAULT_CELL, cell), default=None)
    return None if found is None else (found, min(factor, live[found]))


class KeyCells(NamedTuple):
    """Where a tenant's keys are: TenantRecord's fields."""

    keys_cell: str | None
    ids_cell: str | None


def new_keys_cells(image: MetadataImage, cell: str) -> KeyCells:
    """Where a tenant of `cell` that has no keys yet gets them: in the cell's ranges, unless a topic is still one range
    for all."""
    whole, names = dict.fromkeys(topic.name for topic in _keyed(image) if not topic.ranges), keyed_topics(image)
    return KeyCells(*(cell if name in names and name not in whole else None for name in _IN_ORDER))


_IN_ORDER = (GROUP_TOPIC, TRANSACTION_TOPIC)  # the topics of `KeyCells`


def first_ranges(
    image: MetadataImage, topic: TopicImage, policy: ControllerPolicy, rng: random.Random
) -> list[MetadataRecord]:
    """The ranges of a new topic, which has never held a key: one for each cell that can hold one. None if there is one
    cell, or another topic that is not divided yet: the two will be divided together."""
    cells, others = list(_peopled(image)), [other for other in _keyed(image) if other.name != topic.name]
    divided = [bool(other.ranges) for other in others] or [len(cells) > 1]
    if not cells or not all(divided):
        return []
    return _ranges(image, topic, policy, rng, _holder(image, [topic], cells))


def _divided(image: MetadataImage, policy: ControllerPolicy, rng: random.Random) -> Work[list[MetadataRecord]]:
    """The ranges that are missing. Topics that are one range for all are divided as soon as another cell can hold a
    range of one of them; the first range is that of the cell that holds most of them."""
    records: list[MetadataRecord] = []
    whole, cells = [topic for topic in _keyed(image) if not topic.ranges], list(_peopled(image))
    for topic in _keyed(image):
        if topic.ranges:
            records += _ranges(image, topic, policy, rng, topic.ranges[0].cell)
        yield RANGE_COST + len(records)
    owner = _holder(image, whole, cells) if whole and len(cells) > 1 else None
    if owner is None or not any(_able(image, topic, policy, owner) for topic in whole):
        return records
    for topic in whole:
        records += _ranges(image, topic, policy, rng, owner)
        yield RANGE_COST + len(records)
    return records + (yield from _kept_in_the_first(image, owner, [topic.name for topic in whole]))


def _able(image: MetadataImage, topic: TopicImage, policy: ControllerPolicy, owner: str) -> list[str]:
    """Cells other than the first range's `owner` that have no range of the topic and can hold one."""
    needed = _replicas_needed(topic, policy)
    return [
        cell
        for cell, brokers in _peopled(image).items()
        if cell != owner and topic.range_of(cell) is None and _live(image, brokers) >= needed
    ]


def _ranges(
    image: MetadataImage, topic: TopicImage, policy: ControllerPolicy, rng: random.Random, owner: str
) -> list[MetadataRecord]:
    """Ranges for the cells that have none and can hold one, behind that of `owner`."""
    cells = _peopled(image)
    factor = topic.partitions[0].settled_replica_count
    able = _able(image, topic, policy, owner)
    records: list[MetadataRecord] = []
    count, end = len(topic.partitions), len(topic.partitions)
    if topic.ranges:
        count = topic.ranges[0].count
    else:
        records.append(KeyRangeRecord(topic.topic_id, owner, 0, count))
    for cell in able:
        placer = ReplicaPlacer([usable(image, broker) for broker in cells[cell]], rng)
        assignments = placer.place(count, min(factor, _live(image, cells[cell])))
        records += partition_records(image, topic.topic_id, end, assignments, Cause.PARTITIONS_ADDED)
        records.append(KeyRangeRecord(topic.topic_id, cell, end, count))
        end += count
    return records


@dataclass(frozen=True, slots=True)
class RangeStep(Step):
    """`waits`: check again later even if nothing changes."""

    waits: bool = False


class _Moves(NamedTuple):
    """Reassignments of one topic that begin now. `waits`: some partitions are not in their final state; `problem`: why
    one could not be reassigned."""

    records: list[MetadataRecord]
    waits: bool
    problem: str


def range_step(image: MetadataImage, policy: ControllerPolicy, rng: random.Random) -> Work[RangeStep]:
    """Give ranges to cells that lack them; otherwise move replicas into their range's cell, and add missing
    replicas."""
    records = yield from _divided(image, policy, rng)
    if records:
        return RangeStep(records)
    waits, problem = False, ""
    topics = [topic for name in CLIENT_KEY_TOPICS if (topic := image.topics.get(name)) is not None]
    for topic in topics:
        moves = _moves(image, topic, policy, rng)
        if moves.records and may_throttle_ranges(image, policy, topic.name):
            records += throttles(image, policy, [topic.name])
        records += moves.records
        waits, problem = waits or moves.waits, moves.problem or problem
    running = any(partition.is_reassigning for topic in topics for partition in topic.partitions.values())
    if not records and not waits and not running:
        records += ranges_lifted(image, policy)
    return RangeStep(records, problem, waits)


def _moves(image: MetadataImage, topic: TopicImage, policy: ControllerPolicy, rng: random.Random) -> _Moves:
    """Reassignments of replicas outside their cell, then of partitions with too few replicas."""
    room = policy.access.move_partitions_max - sum(p.is_reassigning for p in topic.partitions.values())
    wanted: list[tuple[PartitionImage, Callable[[], tuple[int, ...]]]] = []
    for held, brokers in _homes(image, topic):
        home = frozenset(broker.broker_id for broker in brokers)
        resting = [p for i in range(held.first, held.end) if not (p := topic.partitions[i]).is_reassigning]
        outside = [partition for partition in resting if not home.issuperset(partition.replicas)]
        # otherwise there are too few brokers for the replicas that are elsewhere
        if outside and len(home) >= _replicas_needed(topic, policy):
            placer = ReplicaPlacer([usable(image, broker) for broker in brokers], rng)
            wanted += [(p, partial(_elsewhere, placer, p, len(home))) for p in outside]
        elif not outside:
            growth = RangeGrowth(topic, [usable(image, broker) for broker in brokers], _full_factor(topic, policy))
            wanted += [(p, partial(growth.replicas, p)) for p in resting if growth.is_short(p)]
    records: list[MetadataRecord] = []
    for partition, replicas in wanted[: max(room, 0)]:
        try:
            record = start_reassignment(image, topic, partition, replicas(), policy)
        except ProtocolError as error:
            return _Moves(records, waits=True, problem=error.message or error.code.name)
        records += [record] if record is not None else []
    return _Moves(records, waits=bool(wanted), problem="")


def _elsewhere(placer: ReplicaPlacer, partition: PartitionImage, home_count: int) -> tuple[int, ...]:
    (replicas,) = placer.place(1, min(partition.settled_replica_count, home_count))
    return replicas


def _homes(image: MetadataImage, topic: TopicImage) -> list[tuple[KeyRange, list[BrokerImage]]]:
    """Each range and the brokers that it belongs on. With one cell, everything is one range, and a topic that cells
    share is one on all brokers."""
    if topic.ranges:
        return [(held, brokers_of(held.cell, image.brokers)) for held in topic.ranges]
    if topic.name not in keyed_topics(image) and topic.partitions:
        return [(KeyRange("", 0, len(topic.partitions)), list(image.brokers.values()))]
    cells = _peopled(image)
    if len(cells) != 1 or not topic.partitions:
        return []
    ((cell, brokers),) = cells.items()
    return [(KeyRange(cell, 0, len(topic.partitions)), brokers)]


def _full_factor(topic: TopicImage, policy: ControllerPolicy) -> int:
    """The number of replicas of a partition if its cell has enough brokers: in each range at least as many as in the
    first."""
    first = [
        topic.partitions[i].settled_replica_count for held in topic.ranges[:1] for i in range(held.first, held.end)
    ]
    return max(keyed_topic_factor(topic.name, policy), min(first, default=1))


def _keyed(image: MetadataImage) -> list[TopicImage]:
    """Those of `keyed_topics` that exist and have partitions."""
    topics = (image.topics.get(name) for name in keyed_topics(image))
    return [topic for topic in topics if topic is not None and topic.partitions]


def _replicas_needed(topic: TopicImage, policy: ControllerPolicy) -> int:
    """How many brokers a cell needs for a range: with fewer it could not hold tenants' topics either."""
    return max(1, min(topic.partitions[0].settled_replica_count, policy.default_replication_factor))


def _peopled(image: MetadataImage) -> dict[str, list[BrokerImage]]:
    """The cells that have brokers, by name."""
    names = sorted({cell_of(broker) for broker in image.brokers.values()})
    return {cell: brokers_of(cell, image.brokers) for cell in names}


def _live(image: MetadataImage, brokers: list[BrokerImage]) -> int:
    return sum(not usable(image, broker).fenced for broker in brokers)


def _holder(image: MetadataImage, topics: list[TopicImage], cells: list[str]) -> str:
    """The cell whose brokers hold most of the topics' replicas."""
    held = Counter(
        cell_of(image.brokers[replica])
        for topic in topics
        for partition in topic.partitions.values()
        for replica in partition.replicas
        if replica in image.brokers
    )
    return min(cells, key=lambda cell: (-held[cell], cell))


def _kept_in_the_first(image: MetadataImage, owner: str, whole: list[str]) -> Work[list[MetadataRecord]]:
    """While the topics named `whole` were one range, all tenants' keys were there, whatever their cell."""
    records: list[MetadataRecord] = []
    for number, tenant in enumerate(image.tenants.values(), 1):
        held = KeyCells(tenant.keys_cell, tenant.ids_cell)
        kept = KeyCells(
            *(None if name in whole and cell != owner else cell for name, cell in zip(_IN_ORDER, held, strict=True))
        )
        if kept != held or tenant.keys_phase is not KeysPhase.SETTLED:
            fields = {**kept._asdict(), "keys_target": None, "keys_phase": KeysPhase.SETTLED}
            records.append(msgspec.structs.replace(tenant.record(), **fields, epoch=tenant.epoch + 1))
        if number % TENANTS_AT_ONCE == 0:
            yield TENANTS_AT_ONCE
    return records
