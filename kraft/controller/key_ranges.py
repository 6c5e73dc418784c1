"""The ranges of internal topics' partitions that cells own, so that tenants' groups are on their cell's brokers. No
I/O.

With one cell, a topic is one range for all. When another cell appears, the existing partitions become the range of the
cell that holds most of them, and each further cell gets a range of as many new partitions after it, on its own brokers.
So no key ever changes its partition: operators' keys and those of existing tenants stay in the first range until a
tenant's move takes its keys along.
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
from kraft.controller.policy import ControllerPolicy
from kraft.controller.range_growth import RangeGrowth
from kraft.controller.reassignment import start_reassignment
from kraft.controller.stepper import Step
from kraft.controller.tenant_topics import usable
from kraft.features import ACCESS_LEVEL, TIDELOG_VERSION
from kraft.image.brokers import BrokerImage
from kraft.image.cells import DEFAULT_CELL, brokers_of, cell_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import Cause, KeyRangeRecord, KeysPhase
from kraft.topic_names import KEYED_TOPICS

RANGE_COST = 50  # of a topic that is looked at, units of `common.pacing`
TENANTS_AT_ONCE = 100


def founding_cell(image: MetadataImage, policy: ControllerPolicy, factor: int) -> tuple[str, int] | None:
    """The cell on whose brokers the first range of a new internal topic is placed, and its replication factor if it
    cannot hold `factor`; None for all brokers.

    That is the default cell, or the first by name, among those that could hold tenants' topics.
    """
    cells = _peopled(image)
    if len(cells) < 2 or not _has_ranges(image):
        return None
    live = {cell: _live(image, brokers) for cell, brokers in cells.items()}
    able = [cell for cell in cells if live[cell] >= max(1, min(factor, policy.default_replication_factor))]
    found = min(able, key=lambda cell: (cell != DEFAULT_CELL, cell), default=None)
    return None if found is None else (found, min(factor, live[found]))


def new_keys_cell(image: MetadataImage, cell: str) -> str | None:
    """Where a new tenant of `cell` gets its keys: in the cell's range, unless an existing topic is still one range for
    all."""
    undivided = [name for name in KEYED_TOPICS if (topic := image.topics.get(name)) is not None and not topic.ranges]
    return None if undivided or not _has_ranges(image) else cell


def missing_ranges(
    image: MetadataImage, topic: TopicImage, policy: ControllerPolicy, rng: random.Random, *, is_new: bool = False
) -> list[MetadataRecord]:
    """Ranges for cells that have none and can hold one. A topic's first range is that of the cell that holds most of
    it. `is_new`: the topic has never held a key."""
    if not _has_ranges(image) or not topic.partitions:
        return []
    cells = _peopled(image)
    factor, needed = topic.partitions[0].settled_replica_count, _replicas_needed(topic, policy)
    able = [cell for cell in cells if topic.range_of(cell) is None and _live(image, cells[cell]) >= needed]
    records: list[MetadataRecord] = []
    count, end = len(topic.partitions), len(topic.partitions)
    if topic.ranges:
        count = topic.ranges[0].count
    elif len(cells) > 1:
        owner = _holder(image, topic, list(cells))
        able = [cell for cell in able if cell != owner]
        if able or is_new:
            records.append(KeyRangeRecord(topic.topic_id, owner, 0, count))
    else:
        return []
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
    records: list[MetadataRecord] = []
    topics = [topic for name in KEYED_TOPICS if (topic := image.topics.get(name)) is not None]
    for topic in topics:
        made = missing_ranges(image, topic, policy, rng)
        records += made
        yield RANGE_COST + len(made)
        if not topic.ranges and made and isinstance(made[0], KeyRangeRecord):
            records += yield from _kept_in_the_first(image, made[0].cell)
    if records:
        return RangeStep(records)
    waits, problem = False, ""
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
    """Each range and the brokers that it belongs on. With one cell, everything is one range."""
    if topic.ranges:
        return [(held, brokers_of(held.cell, image.brokers)) for held in topic.ranges]
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
    return max(policy.group_replication_factor, min(first, default=1))


def _has_ranges(image: MetadataImage) -> bool:
    return image.features.get(TIDELOG_VERSION, 0) >= ACCESS_LEVEL


def _replicas_needed(topic: TopicImage, policy: ControllerPolicy) -> int:
    """How many brokers a cell needs for a range: with fewer it could not hold tenants' topics either."""
    return max(1, min(topic.partitions[0].settled_replica_count, policy.default_replication_factor))


def _peopled(image: MetadataImage) -> dict[str, list[BrokerImage]]:
    """The cells that have brokers, by name."""
    names = sorted({cell_of(broker) for broker in image.brokers.values()})
    return {cell: brokers_of(cell, image.brokers) for cell in names}


def _live(image: MetadataImage, brokers: list[BrokerImage]) -> int:
    return sum(not usable(image, broker).fenced for broker in brokers)


def _holder(image: MetadataImage, topic: TopicImage, cells: list[str]) -> str:
    """The cell whose brokers hold most of the topic's replicas."""
    held = Counter(
        cell_of(image.brokers[replica])
        for partition in topic.partitions.values()
        for replica in partition.replicas
        if replica in image.brokers
    )
    return min(cells, key=lambda cell: (-held[cell], cell))


def _kept_in_the_first(image: MetadataImage, owner: str) -> Work[list[MetadataRecord]]:
    """While a topic was one range, all tenants' keys were there, whatever their cell."""
    records: list[MetadataRecord] = []
    for number, tenant in enumerate(image.tenants.values(), 1):
        if tenant.keys_cell not in (None, owner) or tenant.keys_phase is not KeysPhase.SETTLED:
            settled = tenant.record()
            records.append(
                msgspec.structs.replace(
                    settled, keys_cell=None, keys_target=None, keys_phase=KeysPhase.SETTLED, epoch=tenant.epoch + 1
                )
            )
        if number % TENANTS_AT_ONCE == 0:
            yield TENANTS_AT_ONCE
    return records
