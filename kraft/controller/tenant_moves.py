"""The move of a tenant to another cell: its partitions by reassignments, then its transactional ids and groups
(`kraft.controller.key_moves`). No I/O.

The state of a move is in the image, so any controller continues it. Added replicas fetch under Kafka's replication
throttle: the tenant's topics list all their replicas as throttled, which only affects those out of sync. The rate is
the cluster's default unless an operator has set one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from common.errors import ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.key_moves import KeyReports, KeyStep, key_step
from kraft.controller.key_ranges import new_keys_cells
from kraft.controller.move_throttles import lifted, rate_lifted, throttles
from kraft.controller.placement import ReplicaPlacer
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reassignment import start_reassignment
from kraft.controller.stepper import Step
from kraft.controller.tenant_topics import usable
from kraft.image.cells import brokers_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.tenant_usage import home_ids, is_outside, topics_of
from kraft.image.tenants import TenantImage
from kraft.image.topics import TopicImage
from kraft.records import KeysPhase, TenantState
from kraft.topic_names import CLIENT_KEY_TOPICS

RECORDS_PER_STEP_MAX = 1_000
LOOKS_PER_YIELD, TOPIC_COST = 200, 4  # partitions checked per step; cost of a topic besides them


@dataclass(frozen=True, slots=True)
class MoveStep(Step):
    """`problem`: why a partition could not be reassigned; it is retried later. `running`: partitions that move;
    `waiting`: not begun yet."""

    running: int = 0
    waiting: int = 0
    ends: bool = False


class _Begun(NamedTuple):
    """The reassignments that begin now, and why one could not."""

    records: list[MetadataRecord]
    problem: str


def moving(
    image: MetadataImage,
    policy: ControllerPolicy,
    tenant: TenantImage,
    rng: random.Random,
    reports: KeyReports,
    now_s: float,
) -> Work[MoveStep]:
    """The next step of a MOVING tenant; no records while it only has to wait. `now_s`: monotonic.

    The move of keys begins when all partitions are in the cell. Once begun it waits for none: clients wait for keys,
    and partitions may move for hours, because the tenant is to go elsewhere now, or because one is reassigned.
    """
    home = home_ids(image, tenant)
    running = 0
    outside: list[tuple[TopicImage, PartitionImage]] = []
    for topic in topics_of(image, tenant):
        for number, partition in enumerate(topic.partitions.values(), 1):
            if partition.is_reassigning:
                running += 1
            elif is_outside(partition, home):
                outside.append((topic, partition))
            if number % LOOKS_PER_YIELD == 0:
                yield LOOKS_PER_YIELD
        yield TOPIC_COST + len(topic.partitions) % LOOKS_PER_YIELD
    keys = KeyStep()
    if tenant.keys_phase is not KeysPhase.SETTLED or not (running or outside):
        keys = key_step(image, tenant, reports, now_s)
        if keys.settled:
            return (yield from _ending(image, policy, tenant))
        if keys.record is not None:
            return MoveStep([keys.record], keys.problem, running, waiting=len(outside))
    room = policy.access.move_partitions_max - running
    begun = _Begun([], "")
    if room > 0 and outside:
        begun = _begun(image, policy, tenant, outside[:room], rng)
    return MoveStep(begun.records, keys.problem or begun.problem, running, waiting=len(outside))


def _begun(
    image: MetadataImage,
    policy: ControllerPolicy,
    tenant: TenantImage,
    some: list[tuple[TopicImage, PartitionImage]],
    rng: random.Random,
) -> _Begun:
    placer = ReplicaPlacer([usable(image, broker) for broker in brokers_of(tenant.home, image.brokers)], rng)
    moves: list[MetadataRecord] = []
    topics: dict[str, None] = {}
    problem = ""
    for topic, partition in some:
        try:
            (wanted,) = placer.place(1, len(partition.replicas))
            record = start_reassignment(image, topic, partition, wanted, policy)
        except ProtocolError as error:
            problem = error.message or error.code.name
            continue
        if record is not None:
            moves.append(record)
            topics[topic.name] = None
    if moves and policy.access.move_bytes_per_second:
        return _Begun([*throttles(image, policy, topics), *moves], problem)
    return _Begun(moves, problem)


def _ending(image: MetadataImage, policy: ControllerPolicy, tenant: TenantImage) -> Work[MoveStep]:
    """Remove the throttles, in as many steps as necessary, then end the move."""
    records: list[MetadataRecord] = []
    for topic in topics_of(image, tenant):
        records += lifted(image, topic.name)
        yield TOPIC_COST
        if len(records) >= RECORDS_PER_STEP_MAX:
            return MoveStep(records)
    if not any(
        lifted(image, name) for name in CLIENT_KEY_TOPICS
    ):  # otherwise lifting those throttles removes the rate too
        records += rate_lifted(image, policy, tenant.id)
    records.append(
        msgspec.structs.replace(
            tenant.record(),
            cell=tenant.home,
            **new_keys_cells(image, tenant.home)._asdict(),
            target_cell=None,
            state=TenantState.ACTIVE,
            epoch=tenant.epoch + 1,
        )
    )
    return MoveStep(records, ends=True)
