"""Where names lead: the table, networks, the file that it travels in, and the metadata that it is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.host_names import bootstrap_host, broker_host
from common.machine_disk import MachineDisk
from common.ports import Address
from kraft.image.brokers import BrokerImage
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import Endpoint, TenantRecord, TenantState
from proxy.failures import Cause
from proxy.host_addresses import HostAddresses
from proxy.metadata_routes import ObservedRoutes, routing_table
from proxy.networks import NetworkRules, Networks, counted_address
from proxy.route_file import FILE, FileRoutes, decode_table, encode_table, load_table, save_table
from proxy.routing import ATTEMPTS_MAX, BrokerRoute, Route, RoutingTable, TenantRoute, find_route

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


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=6).map(lambda text: f"lkc-{text}")
RULES = st.builds(
    lambda allow, deny: NetworkRules(Networks(allow), Networks(deny)),
    st.lists(st.ip_addresses().map(str), max_size=2),
    st.lists(st.ip_addresses().map(str), max_size=2),
)
VISITED = st.lists(st.integers(0, 1 << 31), max_size=3).map(tuple)
TENANTS = st.dictionaries(
    NAMES, st.tuples(st.text(max_size=5), st.none() | st.integers(0, 1 << 31), RULES, VISITED), max_size=5
)
BROKERS = st.dictionaries(st.integers(0, 1 << 30), st.tuples(st.text(max_size=9), st.integers(0, 65_535)), max_size=5)


@given(TENANTS, BROKERS, st.integers(0, 1 << 40))
def test_a_table_comes_back_from_its_file_as_it_was(
    tenants: dict[str, tuple[str, int | None, NetworkRules, tuple[int, ...]]],
    brokers: dict[int, Address],
    generation: int,
) -> None:
    table = RoutingTable(
        {one: TenantRoute(one, cell, limit, 0.5, rules, gone) for one, (cell, limit, rules, gone) in tenants.items()},
        {number: BrokerRoute(number, at, "c", number % 2 == 0) for number, at in brokers.items()},
        generation,
    )
    assert decode_table(encode_table(table)) == table


async def test_whoever_serves_is_told_of_a_new_table_and_a_damaged_one_changes_nothing(tmp_path: Path) -> None:
    disk, told = MachineDisk(tmp_path), [0]
    assert load_table(disk) is None
    save_table(disk, TABLE)
    routes = FileRoutes(disk, lambda: told[0])
    assert routes.current == TABLE
    changed = asyncio.Event()
    routes.on_change(lambda _table: changed.set())
    routes.start()
    data = bytearray((tmp_path / FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / FILE).write_bytes(data)
    told[0] = 1
    await asyncio.sleep(0.25)
    assert not changed.is_set()
    assert routes.current == TABLE
    later = RoutingTable({}, TABLE.brokers, 2)
    save_table(disk, later)
    await asyncio.wait_for(changed.wait(), 10)
    assert routes.current == later
    routes.stop()
    (tmp_path / FILE).write_bytes(b"")
    assert load_table(disk) is None


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


def test_the_metadata_becomes_the_table() -> None:
    rules = {"allow_networks": ("10.0.0.0/8",), "deny_networks": ("10.1.0.0/16",)}
    table = routing_table(
        image(
            tenant(A, "east", limits={"connections.max": 7, "connection.rate": 3}, **rules),
            tenant(B, "east", target_cell="west", state=TenantState.MOVING),
            tenant("lkc-cccccc", "east", state=TenantState.DELETING),
            brokers=(broker(1, "east"), broker(2, None, fenced=True), broker(3, "east", listener="OTHER")),
        ),
        "TENANT",
        5,
    )
    assert sorted(table.tenants) == [A, B]
    assert table.tenants[A] == TenantRoute(
        A, "east", 7, 3.0, NetworkRules(Networks(("10.0.0.0/8",)), Networks(("10.1.0.0/16",)))
    )
    assert table.tenants[B].cell == "west"
    assert table.brokers == {
        1: BrokerRoute(1, ("host", 9001), "east", True),
        2: BrokerRoute(2, ("host", 9002), "default", False),
    }
    assert table.generation == 5


class FakeObserver:
    """Tells its subscribers of the images that a test gives it."""

    def __init__(self) -> None:
        self.callbacks: list[object] = []

    def subscribe(self, callback: object) -> None:
        self.callbacks.append(callback)

    def publish(self, new: MetadataImage) -> None:
        for callback in self.callbacks:
            assert callable(callback)
            callback(MetadataDelta(new), new)


def test_only_changes_of_tenants_and_brokers_make_a_new_table() -> None:
    observer, tables = FakeObserver(), list[RoutingTable]()
    routes = ObservedRoutes(observer, "TENANT")  # type: ignore[arg-type]
    routes.on_change(tables.append)
    first = image(tenant(A, "east"), brokers=(broker(1, "east"),))
    observer.publish(first)
    observer.publish(first.at(2, 1, 1, 1))
    assert [table.generation for table in tables] == [1]
    observer.publish(image(brokers=(broker(1, "east"),)))
    assert [sorted(table.tenants) for table in tables] == [[A], []]
    assert routes.current is tables[-1]


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
