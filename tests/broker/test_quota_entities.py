"""Client quotas on a broker: which meters a session is charged to, and how long they are kept."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from broker.quotas.client_throttle import ClientThrottle
from broker.quotas.entity_meters import EntityMeters, MeterKey
from broker.quotas.tenant_bounds import SHARE, TenantBound
from broker.quotas.windows import WindowForm
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason, Usage
from common.node_settings.quotas import QuotaSettings
from kraft.batches import MetadataRecord
from kraft.fleet_records import ClientQuotaRecord, RemoveClientQuotaRecord
from kraft.image.client_quotas import CLIENT_ID, NAME_CHARACTERS_MAX, TENANT, USER, entity_of
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from tests.broker.lab_client import CLIENT_ID as LAB_CLIENT_ID
from tests.broker.replication_lab import Lab, batch, produce_for
from tests.common.kept_memory import kept_bytes
from wire.apis import ApiKey

pytestmark = pytest.mark.virtual_time

TENANT_A = "lkc-aaaaaa"
PRODUCE, FETCH, METADATA = int(ApiKey.PRODUCE), int(ApiKey.FETCH), int(ApiKey.METADATA)
FORM = WindowForm(11, 1)
Names = dict[str, str | None]


class Connection:
    def count_in(self, _: object) -> None: ...
    def tell_of_frames(self, _: object) -> None: ...


class World:
    """A throttle that follows an image."""

    def __init__(self) -> None:
        self.now = 0.0
        self.throttle = ClientThrottle(QuotaSettings(), lambda: self.now)
        self._image: MetadataImage = EMPTY_IMAGE

    def change(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self._image)
        delta.replay_all(records)
        self._image = delta.image()
        self.throttle.metadata_changed(delta, self._image)

    def set(self, names: Names, **values: float) -> None:
        self.change(ClientQuotaRecord(entity_of(names), values))

    def session(self, user: str = "alice", tenant: str | None = None) -> ClientSession:
        principal = f"User:{user}" if tenant is None else f"User:{tenant}_{user}"
        session = ClientSession("CLIENTS", False, "10.0.0.1", Connection(), principal, tenant)
        session.grant(Usage())
        return session

    def produce(self, session: ClientSession, size: int, client_id: bytes | str | None = b"c") -> int:
        return self.throttle.charge(session, client_id, PRODUCE, size, 0)


@pytest.fixture
def world() -> World:
    return World()


async def test_connections_of_a_user_share_its_quota_and_those_of_others_do_not(world: World) -> None:
    world.set({USER: "alice"}, producer_byte_rate=1_000)
    first, second, other = world.session(), world.session(), world.session("bob")
    assert world.produce(first, 10_000) == 0
    assert world.produce(second, 500, b"another client") == 500
    assert world.produce(other, 1 << 30) == 0
    assert second.usage.throttled_ms == {ThrottleReason.CLIENT_QUOTA: 500}


async def test_a_users_clients_have_a_quota_each_under_a_default_for_both(world: World) -> None:
    world.set({USER: None, CLIENT_ID: None}, producer_byte_rate=1_000)
    alice, bob = world.session(), world.session("bob")
    assert [world.produce(one, 10_000, name) for one in (alice, bob) for name in (b"c", b"d")] == [0] * 4
    assert [world.produce(one, 250, name) for one in (alice, bob) for name in (b"c", b"d")] == [250] * 4


async def test_a_client_id_longer_than_any_in_an_entity_is_under_the_default_and_is_not_kept_whole(
    world: World,
) -> None:
    """It may have 32 KB. To look for it took 9 ms for each quota, and 65,536 meters could keep 2 GB of them."""
    longest = "漢" * NAME_CHARACTERS_MAX
    world.set({CLIENT_ID: longest}, producer_byte_rate=1_000)
    world.set({CLIENT_ID: None}, producer_byte_rate=2_000)
    alice = world.session()
    assert world.produce(alice, 10_500, longest) == 500
    assert world.produce(alice, 20_500, longest + "x") == 250
    assert world.produce(alice, 500, longest + "x" * 20_000) == 500, "ids that begin alike share a meter"

    def ask() -> None:
        for number in range(50):
            world.produce(world.session(), 1, f"{number}" + longest * 10)

    assert kept_bytes(ask)[1] < 50 * 10_000


async def test_bytes_count_for_their_direction_alone_and_a_client_id_is_the_same_as_text(world: World) -> None:
    world.set({CLIENT_ID: "c"}, producer_byte_rate=1_000, consumer_byte_rate=2_000)
    alice = world.session()
    assert world.throttle.charge(alice, b"c", FETCH, 40, 19_000) == 0
    assert world.throttle.charge(alice, "c", METADATA, 1 << 20, 0) == 0
    assert world.throttle.refuses_ms(alice, b"c", 2_000) == 500
    assert world.produce(alice, 10_500) == 500
    assert world.throttle.fetch_bytes_max(alice, b"c", 1 << 20) == 2_000


async def test_a_changed_quota_holds_at_once_for_what_was_used_before(world: World) -> None:
    world.set({USER: "alice"}, producer_byte_rate=1_000)
    alice = world.session()
    assert world.produce(alice, 11_000) == 1_000
    world.set({USER: "alice"}, producer_byte_rate=1_099)
    assert world.produce(alice, 0) == 9
    world.change(RemoveClientQuotaRecord(entity_of({USER: "alice"})))
    assert world.produce(alice, 1 << 30) == 0
    assert (alice.charged is not None and alice.charged.is_free) or alice.charged.serial < 3


async def test_a_tenants_client_is_under_the_tenants_quota_and_the_operators(world: World) -> None:
    world.set({TENANT: TENANT_A, USER: "key"}, producer_byte_rate=2_000)
    world.set({USER: f"{TENANT_A}_key"}, producer_byte_rate=4_000)
    of_a, same_name = world.session("key", TENANT_A), world.session("key", "lkc-bbbbbb")
    assert world.produce(of_a, 20_500) == 250, "the tenant's own is the lower one"
    world.change(RemoveClientQuotaRecord(entity_of({TENANT: TENANT_A, USER: "key"})))
    assert world.produce(of_a, 20_500) == 250, "it does not lift the operators'"
    assert world.produce(same_name, 1 << 30) == 0
    world.throttle.bound_tenant(TENANT_A, SHARE, TenantBound(ingress=100))
    assert world.produce(of_a, 2_000) == 10_000
    assert of_a.usage.throttled_ms == {ThrottleReason.CLIENT_QUOTA: 500, SHARE: 10_000}


async def test_time_of_requests_counts_for_the_quota_and_for_the_tenant(world: World) -> None:
    world.set({USER: "alice"}, request_percentage=10)
    alice = world.session()
    reported = alice.usage
    assert world.throttle.charge(alice, b"c", METADATA, 10, 0) == 0
    alice.usage.served(0.6)
    alice.usage.spent(0.5)
    assert reported.requests == 1 and reported.busy_s == pytest.approx(1.1)
    assert world.throttle.charge(alice, b"c", METADATA, 10, 0) == 1_000
    alice.usage.served(50)
    assert world.throttle.charge(alice, b"c", METADATA, 10, 0) == 1_000, "a sample's length at most"
    assert reported.throttled_ms == {ThrottleReason.CLIENT_QUOTA: 2_000}
    world.change(RemoveClientQuotaRecord(entity_of({USER: "alice"})))
    world.set({USER: "bob"}, request_percentage=10)
    assert world.throttle.charge(alice, b"c", METADATA, 10, 0) == 0
    assert alice.usage is reported, "no more is measured than is bounded"
    alice.closed()
    assert reported.connections == 0


async def test_a_meter_outlives_its_connections_but_not_its_window(world: World) -> None:
    world.set({USER: None}, producer_byte_rate=1_000)
    assert world.produce(world.session(), 10_500) == 500
    gc.collect()
    assert world.produce(world.session(), 500) == 1_000, "connecting again begins no new window"
    gc.collect()
    world.now = 30.0
    assert world.produce(world.session("bob"), 1) == 0
    gc.collect()
    assert len(world.throttle.meters) == 1, "alice's is forgotten"


def test_meters_are_bounded_but_a_session_keeps_its_own() -> None:
    meters = EntityMeters(FORM, meters_max=3)
    keys = [MeterKey("producer_byte_rate", "", f"user-{number}", None) for number in range(10)]
    held = meters.of(keys[0], 5.0, 0.0)
    for key in keys:
        meters.of(key, 5.0, 0.0).record(1, 0.0)
    gc.collect()
    assert len(meters) <= 4
    assert meters.of(keys[0], 6.0, 0.0) is held and held.bound == 6.0


async def test_a_user_over_its_quota_is_told_so_over_a_connection(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        quota = ClientQuotaRecord(entity_of({USER: "ANONYMOUS", CLIENT_ID: LAB_CLIENT_ID}), {"producer_byte_rate": 1e6})
        delta = MetadataDelta(lab.controller.image)
        delta.replay(quota)
        lab[0].throttle.metadata_changed(delta, delta.image())
        client, data = await lab[0].connect(), batch(b"x" * 1_000_000)
        told = [(await produce_for(client, data)).throttle_time_ms for _ in range(11)]
        assert told[:9] == [0] * 9 and 900 < told[10] < 1_100
        loop = asyncio.get_running_loop()
        began = loop.time()
        await produce_for(client, data)
        assert loop.time() - began >= 0.9
