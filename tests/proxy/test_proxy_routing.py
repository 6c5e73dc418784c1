"""Where names lead: the table, networks, the file that it travels in, and the metadata that it is made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.host_names import bootstrap_host, broker_host
from common.machine_disk import MachineDisk
from common.pacing import Pacer, at_once
from common.ports import Address
from kraft.image.brokers import BrokerImage
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import Endpoint, TenantRecord, TenantState
from proxy.failures import Cause
from proxy.host_addresses import HostAddresses
from proxy.metadata_routes import ObservedRoutes
from proxy.networks import EVERYBODY, NetworkRules, Networks, counted_address
from proxy.route_file import FILE, FILE_NEW, IDENTITY_BYTES, LOOK_S, PART_TENANTS, FileRoutes, RouteReader, RouteWriter
from proxy.routing import ATTEMPTS_MAX, BrokerRoute, Route, RoutingTable, TenantRoute, find_route
from tests.common.call_count import counted_calls
from tests.kraft.line_counts import LineCount
from tests.kraft.memory_disk import MemoryDisk

DOMAIN = "kafka.test"
A, B = "lkc-aaaaaa", "lkc-bbbbbb"


def address(number: int) -> Address:
    return f"10.0.0.{number}", 9094


TABLE = RoutingTable(
    {A: TenantRoute(A, "east"), B: TenantRoute(B, "west")},
    {
        **{number: BrokerRoute(number, address(number), "east", number != 2) for number in (1, 2, 3, 4, 5)},
        9: BrokerRoute(9, address(9), "west", False),
    },
)


def found(name: str, rotation: int = 0, avoided: dict[Address, float] | None = None) -> Route | Cause:
    return find_route(TABLE, DOMAIN, name, rotation, avoided or {})


def test_a_bootstrap_name_leads_round_the_live_brokers_of_the_tenants_cell() -> None:
    firsts = []
    for rotation in range(8):
        route = found(bootstrap_host(A, DOMAIN), rotation)
        assert isinstance(route, Route)
        assert route.tenant.tenant == A
        assert len(set(route.addresses)) == ATTEMPTS_MAX
        assert set(route.addresses) <= {address(number) for number in (1, 3, 4, 5)}
        firsts.append(route.addresses[0])
    assert firsts == [address(number) for number in (1, 3, 4, 5)] * 2


def test_brokers_out_of_reach_are_asked_last() -> None:
    away = {address(1): 1.0, address(3): 1.0}
    for rotation in range(4):
        route = found(bootstrap_host(A, DOMAIN), rotation, away)
        assert isinstance(route, Route)
        assert set(route.addresses[:2]) == {address(4), address(5)}


def test_a_cell_without_a_live_broker_is_asked_all_the_same() -> None:
    route = found(bootstrap_host(B, DOMAIN))
    assert isinstance(route, Route)
    assert route.addresses == (address(9),)


def test_a_brokers_name_leads_to_it_alone_be_it_away() -> None:
    route = found(broker_host(2, A, DOMAIN))
    assert isinstance(route, Route)
    assert route.addresses == (address(2),)


@given(st.integers(0, 12), st.sets(st.integers(0, 12)))
def test_a_broker_of_another_cell_is_as_unknown_as_one_that_never_was(number: int, visited: set[int]) -> None:
    one = TenantRoute(A, "east", visited=tuple(sorted(visited)))
    found_route = find_route(RoutingTable({A: one}, TABLE.brokers), DOMAIN, broker_host(number, A, DOMAIN), 0, {})
    broker = TABLE.brokers.get(number)
    if broker is not None and (broker.cell == "east" or number in visited):
        assert found_route == Route(one, (address(number),))
    else:
        assert found_route is Cause.UNKNOWN_BROKER


def test_names_that_lead_nowhere() -> None:
    assert found(broker_host(7, A, DOMAIN)) is Cause.UNKNOWN_BROKER
    assert found(bootstrap_host("lkc-zzzzzz", DOMAIN)) is Cause.UNKNOWN_NAME
    assert found(broker_host(1, "lkc-zzzzzz", DOMAIN)) is Cause.UNKNOWN_NAME
    assert found(bootstrap_host(A, "other.test")) is Cause.UNKNOWN_NAME
    empty = RoutingTable({A: TenantRoute(A, "nowhere")}, {})
    assert find_route(empty, DOMAIN, bootstrap_host(A, DOMAIN), 0, {}) is Cause.NO_BROKER


@pytest.mark.parametrize(
    ("allow", "deny", "host", "permitted"),
    [
        ((), (), "1.2.3.4", True),
        (("10.0.0.0/8",), (), "10.255.0.1", True),
        (("10.0.0.0/8",), (), "11.0.0.1", False),
        (("10.0.0.0/8",), (), "::ffff:10.1.1.1", True),
        (("10.0.0.0/8",), ("10.1.0.0/16",), "10.1.2.3", False),
        ((), ("10.1.2.3",), "10.1.2.3", False),
        (("2001:db8::/32",), (), "2001:db8::1%eth0", True),
        (("2001:db8::/32",), (), "10.0.0.1", False),
        (("0.0.0.0/0",), (), "2001:db8::1", False),
        (("10.1.2.3/8",), (), "10.9.9.9", True),
    ],
)
def test_denied_networks_win_over_allowed_ones(
    allow: tuple[str, ...], deny: tuple[str, ...], host: str, permitted: bool
) -> None:
    assert NetworkRules(Networks(allow), Networks(deny)).permits(host) is permitted


def test_what_is_no_network_is_refused() -> None:
    for text in ("10.0.0.0/33", "somewhere", ""):
        with pytest.raises(ValueError, match=r"does not appear|not permitted"):
            Networks((text,))


def test_an_address_is_counted_as_its_user_has_it() -> None:
    assert counted_address("10.1.2.3") == "10.1.2.3"
    assert counted_address("::ffff:10.1.2.3") == "10.1.2.3"
    assert counted_address("2001:db8:1:2:3::4") == counted_address("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"


class DrawnTables:
    """Tables that follow one another, as the steward publishes them."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.table = RoutingTable()

    def next(self) -> set[str]:
        """Change `table`; which tenants' routes are others now."""
        before, rng = dict(self.table.tenants), self._random
        tenants = dict(before)
        for name in rng.sample([f"lkc-{number:06}" for number in range(12)], rng.randrange(4)):
            texts = tuple(rng.sample(("10.0.0.0/8", "2001:db8::1", "1.2.3.4"), rng.randrange(3)))
            tenants.pop(name, None)
            if rng.random() < 0.7:
                rules = rng.choice((EVERYBODY, NetworkRules(Networks(texts), Networks(texts[:1]))))
                limit = rng.choice((None, 0, 1 << 31))
                tenants[name] = TenantRoute(name, rng.choice("ab"), limit, rng.choice((None, 0.5)), rules, (3, 1 << 31))
        brokers = dict(self.table.brokers)
        if rng.random() < 0.3:
            brokers[rng.randrange(4)] = BrokerRoute(1, (rng.choice("hö"), 9094), "a", rng.random() < 0.5)
            brokers = {number: replace(one, broker=number) for number, one in brokers.items()}
        self.table = RoutingTable(tenants, brokers, self.table.generation + 1)
        return {one for one in {*before, *tenants} if before.get(one) != tenants.get(one)}


def identities() -> Callable[[], bytes]:
    numbers = count(1)
    return lambda: next(numbers).to_bytes(IDENTITY_BYTES, "big")


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_has_the_table_that_was_written_whenever_it_looks(seed: int) -> None:
    rng = random.Random(seed)
    disk, tables = MemoryDisk(), DrawnTables(rng)
    writer, reader = RouteWriter(disk, identities()), RouteReader(disk)
    for _ in range(12):
        changed = tables.next()
        at_once(writer.writing(tables.table, changed))
        if rng.random() < 0.2:
            writer.close()  # the next steward begins a new file
        if rng.random() < 0.5:
            before, restricted = reader.table, dict[str, None]()
            at_once(reader.reading(restricted))
            assert reader.table == tables.table
            rules = {one: route.rules for one, route in tables.table.tenants.items()}
            assert {one for one, route in before.tenants.items() if rules.get(one) != route.rules} <= restricted.keys()
    fresh = RouteReader(disk)
    at_once(fresh.reading({}))
    assert fresh.table == tables.table


def test_a_change_is_written_and_read_alone_until_the_changes_are_longer_than_the_table() -> None:
    disk = MemoryDisk()
    writer, reader = RouteWriter(disk, identities()), RouteReader(disk)
    tenants = {f"lkc-{number:06}": TenantRoute(f"lkc-{number:06}", "east") for number in range(5_000)}
    at_once(writer.writing(RoutingTable(tenants, TABLE.brokers, 1), ()))
    at_once(reader.reading({}))
    whole = disk.file_size(FILE)
    sizes = []
    for generation in range(2, 3_000):
        tenants[A] = TenantRoute(A, "east", generation)
        at_once(writer.writing(RoutingTable(tenants, TABLE.brokers, generation), [A]))
        sizes.append(disk.file_size(FILE))
        if len(sizes) == 1:
            with counted_calls() as counted:
                at_once(reader.reading({}))
            assert reader.table.tenants[A].connections_max == generation
            assert counted.calls < 200
    assert sizes[0] - whole < 200
    assert whole < max(sizes) < 2.1 * whole
    assert any(later < size for size, later in pairwise(sizes))
    at_once(reader.reading({}))
    assert reader.table == RoutingTable(tenants, TABLE.brokers, 2_999)


def test_no_slice_of_a_large_table_is_long() -> None:
    disk = MemoryDisk()
    writer, reader = RouteWriter(disk, identities()), RouteReader(disk)
    tenants = {f"lkc-{number:06}": TenantRoute(f"lkc-{number:06}", "east") for number in range(5_000)}
    lines = LineCount()
    lines.of(lambda: writer.writing(RoutingTable(tenants, {}, 1), ()))
    lines.of(lambda: reader.reading({}))
    writer.close()  # begins a new file
    lines.of(lambda: writer.writing(RoutingTable({A: TenantRoute(A, "east")}, {}, 2), ()))
    restricted: dict[str, None] = {}
    lines.of(lambda: reader.reading(restricted))
    assert restricted.keys() == tenants.keys()
    assert lines.most <= PART_TENANTS * 40, f"{lines.most} lines in one go: {lines.where}"


def test_a_change_that_was_cut_off_is_none(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    writer, reader = RouteWriter(disk, identities()), RouteReader(disk)
    at_once(writer.writing(TABLE, ()))
    begin = (tmp_path / FILE).read_bytes()
    later = RoutingTable({A: TABLE.tenants[A]}, TABLE.brokers, 2)
    at_once(writer.writing(later, [B]))
    whole = (tmp_path / FILE).read_bytes()
    for end in range(len(begin), len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        at_once(reader.reading({}))
        assert reader.table == TABLE
    (tmp_path / FILE).write_bytes(whole)
    restricted: dict[str, None] = {}
    at_once(reader.reading(restricted))
    assert (reader.table, restricted) == (later, {B: None})


def test_after_a_write_that_failed_the_table_is_written_whole() -> None:
    disk = MemoryDisk()
    writer = RouteWriter(disk, identities())
    at_once(writer.writing(TABLE, ()))
    later = RoutingTable({A: TABLE.tenants[A]}, TABLE.brokers, 2)
    cut = writer.writing(later, [B])
    next(cut)
    cut.close()  # in the middle, as by an OSError
    last = RoutingTable({A: TenantRoute(A, "west")}, TABLE.brokers, 3)
    at_once(writer.writing(last, [A]))
    reader = RouteReader(disk)
    at_once(reader.reading({}))
    assert reader.table == last
    assert not disk.exists(FILE_NEW)


async def test_whoever_serves_is_told_of_a_new_table_and_a_damaged_one_changes_nothing(tmp_path: Path) -> None:
    disk, told = MachineDisk(tmp_path), [0]
    writer = RouteWriter(disk, identities())
    at_once(writer.writing(TABLE, ()))
    routes = FileRoutes(disk, lambda: told[0], Pacer())
    await routes.start()
    assert routes.current == TABLE
    changed = asyncio.Event()
    gone: list[str] = []

    def note(_table: RoutingTable, restricted: Mapping[str, None]) -> None:
        gone.extend(restricted)
        changed.set()

    routes.on_change(note)
    at_once(writer.writing(RoutingTable({A: TABLE.tenants[A]}, TABLE.brokers, 2), [B]))
    data = bytearray((tmp_path / FILE).read_bytes())
    data[-1] ^= 1
    (tmp_path / FILE).write_bytes(data)
    told[0] = 1
    await asyncio.sleep(0.25)
    assert not changed.is_set()
    assert routes.current == TABLE
    writer.close()
    later = RoutingTable({}, TABLE.brokers, 3)
    at_once(writer.writing(later, ()))
    told[0] = 2
    await asyncio.wait_for(changed.wait(), 10)
    assert routes.current == later
    assert sorted(gone) == [A, B]
    routes.stop()


@pytest.mark.virtual_time
async def test_the_first_table_is_seen_as_soon_as_a_later_one(tmp_path: Path) -> None:
    disk, number = MachineDisk(tmp_path), [0]
    routes = FileRoutes(disk, lambda: number[0], Pacer())
    await routes.start()
    await asyncio.sleep(1.5 * LOOK_S)
    at_once(RouteWriter(disk, identities()).writing(TABLE, ()))
    number[0] = 1
    await asyncio.sleep(1.5 * LOOK_S)
    assert routes.current == TABLE
    routes.stop()


async def test_without_a_file_there_are_no_routes(tmp_path: Path) -> None:
    for data in (None, b"", b"\0" * 8, b"some bytes that are no table"):
        if data is not None:
            (tmp_path / FILE).write_bytes(data)
        routes = FileRoutes(MachineDisk(tmp_path), lambda: 0, Pacer())
        await routes.start()
        routes.stop()
        assert not routes.current.tenants


def broker(number: int, cell: str | None, *, listener: str = "TENANT", fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        number, number, bytes(16), {listener: Endpoint(listener, "host", 9000 + number)}, fenced=fenced, cell=cell
    )


def image(*tenants: TenantRecord, brokers: tuple[BrokerImage, ...] = ()) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    for tenant in tenants:
        delta.replay(tenant)
    made = delta.image()
    return MetadataImage(1, cluster_id="c", tenants=made.tenants, brokers={one.broker_id: one for one in brokers})


def tenant(tenant_id: str, cell: str, **more: object) -> TenantRecord:
    return TenantRecord(tenant_id, tenant_id[4:], cell, 0, **more)  # type: ignore[arg-type]


class FakeObserver:
    """Tells its subscribers of the images that a test gives it."""

    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.callbacks: list[object] = []

    def subscribe(self, callback: object) -> None:
        self.callbacks.append(callback)

    def publish(self, new: MetadataImage) -> None:
        delta, self.image = at_once(differing(self.image, new)), new
        for callback in self.callbacks:
            assert callable(callback)
            callback(delta, new)


async def test_the_metadata_becomes_the_table() -> None:
    rules = {"allow_networks": ("10.0.0.0/8",), "deny_networks": ("10.1.0.0/16",)}
    observer = FakeObserver()
    routes = ObservedRoutes(observer, "TENANT", Pacer())  # type: ignore[arg-type]
    observer.publish(
        image(
            tenant(A, "east", limits={"connections.max": 7, "connection.rate": 3}, **rules),
            tenant(B, "east", target_cell="west", state=TenantState.MOVING),
            tenant("lkc-cccccc", "east", state=TenantState.DELETING),
            brokers=(broker(1, "east"), broker(2, None, fenced=True), broker(3, "east", listener="OTHER")),
        )
    )
    table = routes.current
    assert sorted(table.tenants) == [A, B]
    assert table.tenants[A] == TenantRoute(
        A, "east", 7, 3.0, NetworkRules(Networks(("10.0.0.0/8",)), Networks(("10.1.0.0/16",)))
    )
    assert table.tenants[B].cell == "west"
    assert table.brokers == {
        1: BrokerRoute(1, ("host", 9001), "east", True),
        2: BrokerRoute(2, ("host", 9002), "default", False),
    }
    assert table.generation == 1


async def test_only_changes_of_tenants_and_brokers_make_a_new_table() -> None:
    observer, tables = FakeObserver(), list[tuple[RoutingTable, list[str]]]()
    routes = ObservedRoutes(observer, "TENANT", Pacer())  # type: ignore[arg-type]
    routes.on_change(lambda table, changed: tables.append((table, list(changed))))
    first = image(tenant(A, "east"), brokers=(broker(1, "east"),))
    observer.publish(first)
    observer.publish(first.at(2, 1, 1, 1))
    assert [table.generation for table, _ in tables] == [1]
    observer.publish(image(brokers=(broker(1, "east"),)))
    assert [(sorted(table.tenants), changed) for table, changed in tables] == [([A], [A]), ([], [A])]
    assert routes.current is tables[-1][0]


async def test_names_of_brokers_are_looked_up_once_and_used_on_while_the_name_service_is_away() -> None:
    asked: list[str] = []
    away = False

    async def lookup(host: str) -> str:
        asked.append(host)
        await asyncio.sleep(0)
        if away:
            raise OSError("away")
        return "10.0.0.7"

    hosts = HostAddresses(lookup)
    answers: list[str | None] = []

    async def find(host: str) -> str | None:
        before = len(answers)
        hosts.find(host, answers.append)
        async with asyncio.timeout(10):
            while len(answers) == before:  # noqa: ASYNC110  a callback answers
                await asyncio.sleep(0)
        return answers[-1]

    assert await find("10.1.2.3") == "10.1.2.3"
    assert await find("::1") == "::1"
    assert asked == []
    assert [*await asyncio.gather(find("broker-1"), find("broker-1"))] == ["10.0.0.7", "10.0.0.7"]
    assert asked == ["broker-1"]
    away = True
    assert await find("broker-1") == "10.0.0.7"
    assert await find("broker-2") is None
    await hosts.stop()
