"""Which brokers of other cells tenants get to: what they have there, found step by step as well as at once."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    Endpoint,
    KeyRangeRecord,
    KeysPhase,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTenantRecord,
    RemoveTopicRecord,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from proxy.broker_reach import GROUP_TOPIC, BrokerReach, visited_brokers
from proxy.metadata_routes import ObservedRoutes, routing_table

A, B = "lkc-aaaaaa", "lkc-bbbbbb"
ORDERS, GROUPS = b"o" * 16, b"g" * 16
EAST, WEST = (1, 2), (3, 4)


def broker(number: int, cell: str) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(number, bytes(16), (Endpoint("TENANT", "h", 9000 + number),), None, cell=cell)


def tenant(cell: str, target: str | None = None, **more: object) -> TenantRecord:
    state = TenantState.ACTIVE if target is None else TenantState.MOVING
    return TenantRecord(A, "a", cell, 0, state=state, target_cell=target, **more)  # type: ignore[arg-type]


def partition(topic_id: bytes, number: int, *replicas: int) -> PartitionRecord:
    return PartitionRecord(topic_id, number, replicas, replicas, replicas[0])


def after(image: MetadataImage, *records: MetadataRecord) -> tuple[MetadataDelta, MetadataImage]:
    delta = MetadataDelta(image)
    delta.replay_all(records)
    return delta, delta.image()


BROKERS = tuple(broker(number, "east" if number in EAST else "west") for number in (*EAST, *WEST))
ORDERS_IN_EAST = (TopicRecord(f"{A}_orders", ORDERS), partition(ORDERS, 0, 1, 2), partition(ORDERS, 1, 2, 1))
DIVIDED = (
    TopicRecord(GROUP_TOPIC, GROUPS),
    partition(GROUPS, 0, 1, 2),
    partition(GROUPS, 1, 3, 4),
    KeyRangeRecord(GROUPS, "east", 0, 1),
    KeyRangeRecord(GROUPS, "west", 1, 1),
)


def visited(*records: MetadataRecord) -> tuple[int, ...]:
    return visited_brokers(after(EMPTY_IMAGE, *BROKERS, *records)[1]).get(A, ())


def test_who_stays_at_home_visits_nobody() -> None:
    assert visited(tenant("east", keys_cell="east"), *ORDERS_IN_EAST, *DIVIDED) == ()


def test_who_moves_has_both_cells_and_then_the_new_one() -> None:
    assert visited(tenant("east", "west", keys_cell="east"), *ORDERS_IN_EAST, *DIVIDED) == EAST
    gone = (PartitionChangeRecord(ORDERS, 0, replicas=(3, 4)), PartitionChangeRecord(ORDERS, 1, replicas=(4, 3)))
    assert visited(tenant("west", keys_cell="west"), *ORDERS_IN_EAST, *DIVIDED, *gone) == ()


def test_what_was_left_elsewhere_is_got_to_where_it_is() -> None:
    one = PartitionChangeRecord(ORDERS, 1, replicas=(3, 1))
    assert visited(tenant("east", keys_cell="east"), *ORDERS_IN_EAST, *DIVIDED, one) == (3,)


def test_groups_are_got_to_where_they_are_kept() -> None:
    assert visited(tenant("west"), *DIVIDED) == EAST  # in the first range, where they were before there were two
    assert visited(tenant("west"), TopicRecord(GROUP_TOPIC, GROUPS), partition(GROUPS, 0, 2, 4)) == (2,)
    comes = tenant("west", keys_cell="west", keys_target="east", keys_phase=KeysPhase.COPYING, keys_epoch=1)
    assert visited(comes, *DIVIDED) == EAST


@given(st.randoms(use_true_random=False))
def test_step_by_step_comes_to_what_one_look_finds(rng: random.Random) -> None:
    reach, (delta, image) = BrokerReach(), after(EMPTY_IMAGE, *BROKERS, tenant("east"), *ORDERS_IN_EAST, *DIVIDED)
    reach.follow(delta, image)
    for _ in range(8):
        delta, image = after(image, *_some_change(rng, image))
        assert reach.follow(delta, image) == visited_brokers(image)


def _some_change(rng: random.Random, image: MetadataImage) -> list[MetadataRecord]:
    here = tuple(rng.sample((1, 2, 3, 4), 2))
    cell, other = rng.sample(("east", "west"), 2)
    choices: list[list[MetadataRecord]] = [
        [tenant(cell, rng.choice((None, other)), keys_cell=rng.choice((None, cell, other)))],
        [PartitionChangeRecord(GROUPS, rng.randrange(2), replicas=here)],
        [broker(rng.randrange(1, 6), cell)],
        [TenantRecord(B, "b", cell, 0)],
        [],
    ]
    if image.topics.get_by_id(ORDERS) is None:
        choices.append([TopicRecord(f"{rng.choice((A, B))}_orders", ORDERS), partition(ORDERS, 0, *here)])
    else:
        choices.append([PartitionChangeRecord(ORDERS, 0, replicas=here)])
        choices.append([RemoveTopicRecord(ORDERS)])
    if B in image.tenants:
        choices.append([RemoveTenantRecord(B)])
    return rng.choice(choices)


class Told:
    """An observer that a test speaks for."""

    def subscribe(self, callback: object) -> None:
        self.callback = callback


def test_a_table_follows_when_the_last_partition_has_left() -> None:
    told = Told()
    routes = ObservedRoutes(told, "TENANT")  # type: ignore[arg-type]

    def publish(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
        delta, new = after(image, *records)
        told.callback(delta, new)  # type: ignore[operator]
        assert routes.current.tenants == routing_table(new, "TENANT").tenants
        return new

    image = publish(EMPTY_IMAGE, *BROKERS, tenant("west", keys_cell="west"), *ORDERS_IN_EAST, *DIVIDED)
    assert routes.current.tenants[A].visited == EAST
    image = publish(image, PartitionChangeRecord(ORDERS, 0, replicas=(3, 4)))
    generation = routes.current.generation
    image = publish(image, PartitionChangeRecord(GROUPS, 0, isr=(1,)))
    assert routes.current.generation == generation
    publish(image, PartitionChangeRecord(ORDERS, 1, replicas=(3, 4)))
    assert (routes.current.tenants[A].visited, routes.current.generation) == ((), generation + 1)
