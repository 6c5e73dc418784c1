"""Requests are charged to their tenants' bounds: producers answered and muted, consumers answered without rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.quotas.client_throttle import ClientThrottle
from broker.quotas.tenant_bounds import NO_BOUND, PRESSURE, SHARE, TenantBound
from broker.requests.context import RequestContext
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason
from common.node_settings.quotas import QuotaSettings
from kraft.records import PartitionRecord, TopicRecord
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import TOPIC_ID, Lab, batch, fetch, produce_for, row_of
from tests.common.call_count import counted_calls
from wire.apis import ApiKey
from wire.messages import CreateTopicsResponse

pytestmark = pytest.mark.virtual_time

TENANT = "lkc-noisy0"
METADATA, PRODUCE, FETCH = int(ApiKey.METADATA), int(ApiKey.PRODUCE), int(ApiKey.FETCH)


class Muted:
    def count_in(self, _: object) -> None: ...
    def tell_of_frames(self, _: object) -> None: ...


def session(tenant: str | None = TENANT, *, internal: bool = False) -> ClientSession:
    return ClientSession("CLIENTS", internal, "10.0.0.1", Muted(), tenant=tenant)


def throttle(*, now: float = 0.0) -> ClientThrottle:
    return ClientThrottle(QuotaSettings(), lambda: now)


async def test_a_request_within_its_bounds_costs_a_few_calls_however_many_tenants_have_some() -> None:
    charged, client = throttle(), session()
    for number in range(500):
        charged.bound_tenant(f"lkc-{number:06d}", SHARE, TenantBound(1e6, 1e6, 1.0))
    charged.bound_tenant(TENANT, SHARE, TenantBound(1e6, 1e6, 1.0))
    for _ in range(2):
        client.usage.served(0.001)
        assert charged.charge(client, b"a", PRODUCE, 100, 0) == 0
    client.usage.served(0.001)
    with counted_calls() as count:
        assert charged.charge(client, b"a", PRODUCE, 100, 0) == 0
    assert count.calls <= 14


async def test_a_tenant_waits_for_the_lower_bound_and_its_reason_is_counted() -> None:
    charged, client = throttle(), session()
    assert charged.charge(client, b"a", PRODUCE, 50_000, 0) == 0
    charged.bound_tenant(TENANT, SHARE, TenantBound(ingress=2_000))
    charged.bound_tenant(TENANT, PRESSURE, TenantBound(ingress=1_000))
    assert charged.charge(client, b"a", PRODUCE, 10_000, 0) == 0, "ten seconds' worth at once"
    assert charged.charge(client, b"b", METADATA, 500, 0) == 500, "any request's bytes count, of any client id"
    assert client.usage.throttled_ms == {PRESSURE: 500}
    charged.bound_tenant(TENANT, PRESSURE, NO_BOUND)
    assert charged.charge(client, b"a", PRODUCE, 12_000, 0) == 1_250
    assert client.usage.throttled_ms == {PRESSURE: 500, SHARE: 1_250}


async def test_what_a_client_owes_for_connecting_too_fast_counts_if_it_is_longer() -> None:
    charged, client = throttle(), session()
    charged.bound_tenant(TENANT, SHARE, TenantBound(ingress=1_000))
    client.owe_pause(700)
    assert charged.charge(client, None, PRODUCE, 10_500, 0) == 700
    client.owe_pause(700)
    assert charged.charge(client, None, PRODUCE, 500, 0) == 1_000
    assert client.usage.throttled_ms == {ThrottleReason.CONNECTION_RATE: 700, SHARE: 1_000}


async def test_only_the_bounded_tenant_waits_and_never_another_node() -> None:
    charged = throttle()
    charged.bound_tenant(TENANT, SHARE, TenantBound(1, 1, 0.001))
    free = [session("lkc-quiet0"), session(None), session(internal=True)]
    assert [charged.charge(one, b"a", PRODUCE, 1 << 20, 1 << 20) for one in free] == [0, 0, 0]
    assert [charged.refuses_ms(one, b"a", 1 << 20) for one in free] == [0, 0, 0]
    assert [charged.fetch_bytes_max(one, b"a", 1 << 20) for one in free] == [1 << 20] * 3


async def test_a_bound_that_ends_is_forgotten_and_one_that_begins_is_seen_by_old_sessions() -> None:
    charged, client = throttle(), session()
    assert charged.charge(client, b"a", PRODUCE, 1 << 20, 0) == 0
    charged.bound_tenant(TENANT, SHARE, TenantBound(ingress=1_000))
    assert charged.charge(client, b"a", PRODUCE, 11_000, 0) == 1_000
    charged.bound_tenant(TENANT, SHARE, NO_BOUND)
    assert charged.charge(client, b"a", PRODUCE, 1 << 20, 0) == 0
    charged.bound_tenant(TENANT, SHARE, TenantBound(ingress=1_000))
    assert charged.charge(client, b"a", PRODUCE, 11_000, 0) == 1_000, "what was used before the end does not count"


async def test_a_tenants_time_on_the_loop_is_bounded_and_a_pause_for_it_is_short() -> None:
    charged, client = throttle(), session()
    client.usage.served(100.0)
    charged.bound_tenant(TENANT, SHARE, TenantBound(busy=0.1))
    assert charged.charge(client, None, METADATA, 10, 0) == 0, "what was used before the bound does not count"
    client.usage.served(1.05)
    assert charged.charge(client, None, METADATA, 10, 0) == 500
    client.usage.served(30.0)
    assert charged.charge(client, None, METADATA, 10, 0) == 1_000


async def test_a_fetch_reads_what_its_window_leaves() -> None:
    charged, client = throttle(), session()
    charged.bound_tenant(TENANT, SHARE, TenantBound(egress=1_000))
    assert charged.fetch_bytes_max(client, None, 1 << 30) == 10_000
    assert charged.fetch_bytes_max(client, None, 7_000) == 7_000
    assert charged.charge(client, None, FETCH, 50, 6_000) == 0
    assert charged.fetch_bytes_max(client, None, 1 << 30) == 4_000
    assert charged.refuses_ms(client, None, 4_500) == 0, "what is beyond a sample's worth is paid for afterwards"
    assert charged.charge(client, None, FETCH, 50, 3_500) == 0
    assert charged.fetch_bytes_max(client, None, 1 << 30) == 1_000
    assert charged.refuses_ms(client, None, 500) == 0
    assert [charged.refuses_ms(client, None, size) for size in (900, 4_500, 4_500)] == [400, 500, 500]
    assert charged.refuses_ms(client, None, 500) == 0, "nothing was recorded"
    assert client.usage.throttled_ms == {SHARE: 1_400}


async def test_a_client_waits_for_what_the_controller_says_if_that_is_longer() -> None:
    client = session()
    context = RequestContext(client, int(ApiKey.CREATE_TOPICS), 7, 1, "c", throttle_ms=100)
    assert context.throttled(CreateTopicsResponse(throttle_time_ms=0, topics=[])).throttle_time_ms == 100
    context.owe(CreateTopicsResponse(throttle_time_ms=700, topics=[]))
    assert context.throttled(CreateTopicsResponse(throttle_time_ms=300, topics=[])).throttle_time_ms == 700
    assert context.throttle_ms == 700, "for as long its connection is muted"
    assert client.usage.throttled_ms == {ThrottleReason.PARTITION_MUTATIONS: 600}


# over connections ----------------------------------------------------------------------------------------------

BOUND = 1_000_000
FIRST_S, THEN_S = 11.0, 110.0  # a window, and ten more


def create_topic(lab: Lab) -> None:
    lab.controller.change(TopicRecord(f"{TENANT}_flights", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0,), (0,), 0, 0, 0))


async def tenants_client(lab: Lab) -> tuple[LabClient, ClientSession]:
    client = await lab[0].connect()
    await fetch(client, 0, max_wait_ms=0)
    (session,) = [one.state for one in lab[0].server.connections]
    assert isinstance(session, ClientSession)
    session.belong_to(f"User:{TENANT}_key", TENANT, None)
    return client, session


async def fetched(client: LabClient, offset: int, **fields: Any) -> Any:
    return await fetch(client, offset, max_wait_ms=0, max_bytes=1 << 30, partition_max_bytes=1 << 30, **fields)


@pytest.mark.parametrize("parts_at_once", [100, 0], ids=["ordinary", "long"])
async def test_a_producer_is_held_to_its_bound_and_told_the_time(tmp_path: Path, parts_at_once: int) -> None:
    async with Lab(tmp_path, count=1, produce_parts_at_once=parts_at_once) as lab:
        create_topic(lab)
        client, session = await tenants_client(lab)
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(ingress=BOUND))
        loop, data = asyncio.get_running_loop(), batch(b"x" * 500_000)
        sent, told_ms = 0, 0
        while loop.time() < FIRST_S:
            await produce_for(client, data)
        began = loop.time()
        while loop.time() < began + THEN_S:
            told_ms += (await produce_for(client, data)).throttle_time_ms
            sent += len(data)
        assert sent / (loop.time() - began) == pytest.approx(BOUND, rel=0.02)
        assert told_ms / 1000 == pytest.approx(loop.time() - began, rel=0.05), "it waited for nothing else"
        assert session.usage.throttled_ms[SHARE] >= told_ms


async def test_a_producer_that_wants_no_answer_is_muted_all_the_same(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        create_topic(lab)
        client, _ = await tenants_client(lab)
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(ingress=BOUND))
        data = batch(b"x" * 1_000_000)
        for _ in range(30):
            with pytest.raises(TimeoutError):
                await produce_for(client, data, acks=0, patience_s=0.001)
        await asyncio.sleep(0.5)
        taken = _batches(lab)
        assert taken in (11, 12), "a window's worth, and one batch more"
        await asyncio.sleep(5)
        assert _batches(lab) - taken in range(1, 6)


async def test_requests_in_flight_behind_one_over_the_bound_wait(tmp_path: Path) -> None:
    """The connection is muted when a request is taken, and not when a follower has it, and it is answered."""
    async with Lab(tmp_path, count=1) as lab:
        absent = 1
        partition = PartitionRecord(TOPIC_ID, 0, (0, absent), (0, absent), 0, 0, 0)
        lab.controller.change(TopicRecord(f"{TENANT}_flights", TOPIC_ID), partition)
        client, _ = await tenants_client(lab)
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(ingress=BOUND))
        data = batch(b"x" * 1_000_000)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await produce_for(client, data, patience_s=0.001)
        await asyncio.sleep(0.5)
        assert _batches(lab) in (11, 12), "a window's worth, and one batch more"


def _batches(lab: Lab) -> int:
    return lab[0].plane.partitions.by_id[TOPIC_ID][0].log.log_end_offset


async def test_a_consumer_over_its_bound_gets_no_rows_until_its_time_has_passed(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        create_topic(lab)
        client, session = await tenants_client(lab)
        size = len(batch(b"x" * 1_040_000))
        for _ in range(12):
            await produce_for(client, batch(b"x" * 1_040_000))
        partition = lab[0].plane.partitions.by_id[TOPIC_ID][0]
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(egress=BOUND))
        first = await fetched(client, 0)
        assert first.throttle_time_ms == 0 and 9 * size <= len(row_of(first).records) <= BOUND * 10
        sent = partition.bytes_out
        refused = await fetched(client, 9)
        assert refused.responses == [] and 0 < refused.throttle_time_ms <= 600
        assert partition.bytes_out == sent, "nothing counts as sent"
        assert session.connection.unsent_regions == 0
        loop = asyncio.get_running_loop()
        waited = loop.time()
        again = await fetched(client, 9)
        assert loop.time() - waited >= refused.throttle_time_ms / 1000 - 0.001, "its connection was muted"
        assert len(row_of(again).records) == size
        assert again.throttle_time_ms == pytest.approx(40, abs=5), "for what is beyond a sample's worth"


async def test_a_refused_fetch_keeps_its_session_and_a_full_one_begins_none(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        create_topic(lab)
        client, _ = await tenants_client(lab)
        for _ in range(12):
            await produce_for(client, batch(b"x" * 1_040_000))
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(egress=BOUND))
        first = await fetched(client, 0, session_id=0, session_epoch=0)
        assert first.session_id
        refused = await fetched(client, 9, session_id=first.session_id, session_epoch=1)
        assert (refused.session_id, refused.responses, refused.error_code) == (first.session_id, [], 0)
        assert refused.throttle_time_ms
        again = await fetched(client, 9, session_id=first.session_id, session_epoch=2, partitions=[])
        assert len(row_of(again).records) > 1_040_000, "the refused change of the position holds"
        full = await fetched(client, 10, session_id=0, session_epoch=0)
        assert full.throttle_time_ms and (full.session_id, full.responses) == (0, [])
        assert len(lab[0].plane.sessions) == 1


async def test_a_long_fetch_over_the_bound_is_refused_too(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1, fetch_parts_at_once=0) as lab:
        create_topic(lab)
        client, _ = await tenants_client(lab)
        for _ in range(12):
            await produce_for(client, batch(b"x" * 1_040_000))
        lab[0].throttle.bound_tenant(TENANT, SHARE, TenantBound(egress=BOUND))
        first = await fetched(client, 0, session_id=0, session_epoch=0)
        assert first.session_id and len(row_of(first).records) > 9_000_000
        refused = await fetched(client, 9, session_id=0, session_epoch=0)
        assert refused.throttle_time_ms and (refused.session_id, refused.responses) == (0, [])
        assert len(row_of(await fetched(client, 9)).records) > 1_040_000
        assert len(lab[0].plane.sessions) == 1
