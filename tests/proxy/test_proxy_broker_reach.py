"""Which brokers of other cells tenants get to: what they have there, found step by step as well as at once, and never
in a long callback."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.pacing import SLICE_COST, Pacer, at_once
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    KeyRangeRecord,
    KeysPhase,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTenantRecord,
    RemoveTopicRecord,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from proxy.broker_reach import CLIENT_KEY_TOPICS, BrokerReach
from proxy.metadata_routes import TENANT_COST, ObservedRoutes, broker_routes
from proxy.routing import RoutingTable
from tests.common.call_count import counted_calls

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
    TopicRecord(CLIENT_KEY_TOPICS[0], GROUPS),
    partition(GROUPS, 0, 1, 2),
    partition(GROUPS, 1, 3, 4),
    KeyRangeRecord(GROUPS, "east", 0, 1),
    KeyRangeRecord(GROUPS, "west", 1, 1),
)


def visited_brokers(image: MetadataImage, reach: BrokerReach | None = None) -> dict[str, tuple[int, ...]]:
    """By tenant, without those who visit none."""
    reach = BrokerReach() if reach is None else reach
    found = {one: at_once(reach.visiting(image, tenant)) for one, tenant in image.tenants.items()}
    return {one: brokers for one, brokers in found.items() if brokers}


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
    assert visited(tenant("west"), TopicRecord(CLIENT_KEY_TOPICS[0], GROUPS), partition(GROUPS, 0, 2, 4)) == (2,)
    comes = tenant("west", keys_cell="west", keys_target="east", keys_phase=KeysPhase.COPYING, keys_epoch=1)
    assert visited(comes, *DIVIDED) == EAST


@pytest.mark.parametrize("seed", range(40))
def test_step_by_step_comes_to_what_one_look_finds(seed: int) -> None:
    rng = random.Random(seed)
    reach, (delta, image) = BrokerReach(), after(EMPTY_IMAGE, *BROKERS, tenant("east"), *ORDERS_IN_EAST, *DIVIDED)
    at_once(reach.following(delta, image, {}))
    known = visited_brokers(image, reach)
    for _ in range(8):
        delta, image = after(image, *_some_change(rng, image))
        touched: dict[str, None] = {}
        all_are = at_once(reach.following(delta, image, touched))
        now = visited_brokers(image, reach)
        changed = {one for one in image.tenants if now.get(one) != known.get(one)}
        assert now == visited_brokers(image)
        assert all_are or changed <= touched.keys()
        known = now


@pytest.mark.parametrize("record", [
    PartitionChangeRecord(GROUPS, 0, isr=(1,)),
    PartitionChangeRecord(ORDERS, 0, isr=(1,), leader=1),
    BrokerRegistrationChangeRecord(1, 0, fenced=True),
])  # fmt: skip
def test_who_leads_and_who_is_in_sync_leads_nobody_elsewhere(record: MetadataRecord) -> None:
    _, image = after(EMPTY_IMAGE, *BROKERS, tenant("east"), *ORDERS_IN_EAST, *DIVIDED)
    touched: dict[str, None] = {}
    assert not at_once(BrokerReach().following(*after(image, record), touched))
    assert not touched


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


def routes_of(image: MetadataImage) -> RoutingTable:
    """What an observer finds that comes to know all of `image` at one moment."""
    told = Told()
    routes = ObservedRoutes(told, "TENANT", Pacer(1 << 60, 1 << 60))  # type: ignore[arg-type]
    told.callback(at_once(differing(EMPTY_IMAGE, image)), image)  # type: ignore[operator]
    return routes.current


async def test_a_table_follows_when_the_last_partition_has_left() -> None:
    told = Told()
    routes = ObservedRoutes(told, "TENANT", Pacer(1 << 60, 1 << 60))  # type: ignore[arg-type]

    def publish(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
        delta, new = after(image, *records)
        told.callback(delta, new)  # type: ignore[operator]
        whole = routes_of(new)
        assert (routes.current.tenants, routes.current.brokers) == (whole.tenants, whole.brokers)
        return new

    image = publish(EMPTY_IMAGE, *BROKERS, tenant("west", keys_cell="west"), *ORDERS_IN_EAST, *DIVIDED)
    assert routes.current.tenants[A].visited == EAST
    image = publish(image, PartitionChangeRecord(ORDERS, 0, replicas=(3, 4)))
    generation = routes.current.generation
    image = publish(image, PartitionChangeRecord(GROUPS, 0, isr=(1,)))
    assert routes.current.generation == generation
    image = publish(image, PartitionChangeRecord(ORDERS, 1, replicas=(3, 4)))
    assert (routes.current.tenants[A].visited, routes.current.generation) == ((), generation + 1)
    publish(image, RemoveTenantRecord(A), RemoveTopicRecord(ORDERS))
    assert not routes.current.tenants


async def test_one_more_tenant_costs_as_much_among_many_as_among_few() -> None:
    async def calls(others: int) -> int:
        told = Told()
        routes = ObservedRoutes(told, "TENANT", Pacer(1 << 60, 1 << 60))  # type: ignore[arg-type]
        many = [TenantRecord(f"lkc-{number:06}", f"n{number}", "east", 0) for number in range(others)]
        delta, image = after(EMPTY_IMAGE, *BROKERS, *many, *ORDERS_IN_EAST)
        told.callback(delta, image)  # type: ignore[operator]
        delta, image = after(image, tenant("east"))
        with counted_calls() as count:
            told.callback(delta, image)  # type: ignore[operator]
        assert len(routes.current.tenants) == others + 1
        return count.calls

    await calls(1)  # what is cached at the first use counts for neither
    assert await calls(5_000) == await calls(5)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_when_a_broker_comes_all_tenants_are_looked_at_in_slices_and_published_together() -> None:
    told, pacer, tables = Told(), Pacer(), list[tuple[RoutingTable, int]]()
    routes = ObservedRoutes(told, "TENANT", pacer)  # type: ignore[arg-type]
    routes.on_change(lambda table, changed: tables.append((table, len(changed))))
    many = [TenantRecord(f"lkc-{number:06}", f"n{number}", "east", 0) for number in range(3_000)]
    delta, image = after(EMPTY_IMAGE, *BROKERS, *many)
    told.callback(delta, image)  # type: ignore[operator]
    await turns(100)
    assert (len(tables), tables[0][1]) == (1, len(many))
    slices = pacer.slices
    delta, image = after(image, broker(7, "west"))
    told.callback(delta, image)  # type: ignore[operator]
    delta, image = after(image, tenant("west"))
    told.callback(delta, image)  # type: ignore[operator]
    await turns(100)
    assert A in routes.current.tenants
    assert [changed for _, changed in tables[1:]] == [0, 1]
    assert tables[1][0].brokers == broker_routes(image, "TENANT")
    assert pacer.slices - slices >= len(many) * TENANT_COST // SLICE_COST
    assert pacer.costliest <= 2 * SLICE_COST


async def test_what_is_under_way_when_the_steward_stops_is_not_published() -> None:
    told, tables = Told(), list[RoutingTable]()
    routes = ObservedRoutes(told, "TENANT", Pacer())  # type: ignore[arg-type]
    routes.on_change(lambda table, _: tables.append(table))
    many = [TenantRecord(f"lkc-{number:06}", f"n{number}", "east", 0) for number in range(3_000)]
    told.callback(*after(EMPTY_IMAGE, *BROKERS, *many))  # type: ignore[operator]
    routes.stop()
    await turns(100)
    assert not tables
