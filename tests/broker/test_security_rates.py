"""Addresses and tenants that connect too fast: told for how long to wait, and not read meanwhile; others are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.client_throttle import ClientThrottle
from broker.security.config import SecurityConfig
from broker.security.connection_rates import PAUSE_S_MAX, ConnectionRates, pause_of
from broker.security.session import ClientSession
from common.machine import MachineClock
from common.node_settings.quotas import QuotaSettings
from common.token_bucket import TokenBucket
from kraft.fleet_records import ClientQuotaRecord
from kraft.image.client_quotas import CONNECTION_RATE as CONNECTION_CREATION_RATE
from kraft.image.client_quotas import IP, entity_of
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import TenantRecord
from tests.broker.gate_oracle.cluster_questions import api_versions
from tests.broker.gate_oracle.node import GatedNode
from tests.broker.gate_oracle.things import Ids
from tests.common.steered_clock import SteeredClock
from wire.messages import SaslHandshakeRequest

SLOW, QUICK = "lkc-slow00", "lkc-quick0"
API_VERSIONS = 18


def session(host: str = "10.0.0.1", tenant: str | None = None) -> ClientSession:
    return ClientSession("T", False, host, None, tenant=tenant)


def image() -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(
        [TenantRecord(SLOW, "slow", "default", 0, {"connection.rate": 2}), TenantRecord(QUICK, "quick", "default", 0)]
    )
    return delta.image()


@given(
    rate=st.integers(1, 50), gaps=st.lists(st.floats(0, 2, allow_nan=False) | st.just(0.0), min_size=1, max_size=300)
)
def test_no_second_serves_more_than_the_rate_and_its_stock(rate: int, gaps: list[float]) -> None:
    now, served, bucket = 0.0, [], TokenBucket(rate, rate, 0.0)
    for gap in gaps:
        now += gap
        pause = pause_of(bucket, rate, now)
        assert 0 <= pause <= PAUSE_S_MAX
        if pause < PAUSE_S_MAX - 1 / rate:  # beyond, waits are as long as they may be
            served.append(now + pause)
    for at, first in enumerate(served):
        within = sum(1 for one in served[at:] if one < first + 1)
        assert within <= 2 * rate + 1


def test_a_tenant_has_its_own_rate_and_leaves_its_neighbours_alone() -> None:
    rates = ConnectionRates(image, lambda: 5.0, 0, 3)
    slow = [session(tenant=SLOW) for _ in range(5)]
    quick = [session(tenant=QUICK) for _ in range(4)]
    for one in (*slow, *quick):
        rates.logged_in(one)
    assert [one.pause_ms for one in slow] == [0, 0, 500, 1_000, 1_500]
    assert [one.pause_ms for one in quick] == [0, 0, 0, 333]
    assert rates.throttled == {"address": 0, "tenant": 4}
    operator = session()
    rates.logged_in(operator)
    assert not operator.pause_ms


def test_a_client_quota_gives_an_address_its_rate_and_a_default_all_others() -> None:
    records = [
        ClientQuotaRecord(entity_of({IP: "10.0.0.2"}), {CONNECTION_CREATION_RATE: 2}),
        ClientQuotaRecord(entity_of({IP: None}), {CONNECTION_CREATION_RATE: 1}),
    ]
    quotas = replayed(EMPTY_IMAGE, records)
    rates = ConnectionRates(lambda: quotas, lambda: 5.0, 100, 0)
    connections = [session(address) for address in ("10.0.0.2", "10.0.0.3") for _ in range(3)]
    for one in connections:
        rates.connected(one)
    assert [one.pause_ms for one in connections] == [0, 0, 500, 0, 1_000, 2_000]


def test_only_an_answer_with_room_for_it_tells_the_time_and_once() -> None:
    rates = ConnectionRates(image, lambda: 5.0, 1, 0)
    first, second = session(), session()
    rates.connected(first)
    rates.connected(second)
    throttle = ClientThrottle(QuotaSettings(), lambda: 5.0)
    assert throttle.charge(first, None, API_VERSIONS, 0, 0) == 0
    told = [throttle.charge(second, None, key, 0, 0) for key in (17, 36, API_VERSIONS, API_VERSIONS)]
    assert told == [0, 0, 1_000, 0]


def test_addresses_are_forgotten_when_there_are_too_many() -> None:
    rates = ConnectionRates(image, lambda: 5.0, 1, 0, buckets_max=3)

    def pauses(number: int) -> bool:
        one = session(f"10.0.0.{number}")
        rates.connected(one)
        return one.pause_ms > 0

    assert not any(pauses(number) for number in range(10))
    assert [pauses(number) for number in (7, 8, 9)] == [True] * 3, "their second connection at once"
    assert not any(pauses(number) for number in range(7)), "nothing is known of them any more"


@pytest.mark.parametrize("sasl", [False, True])
async def test_a_connection_too_many_is_answered_with_the_time_and_muted_for_it(tmp_path: Path, sasl: bool) -> None:
    """On a listener with SASL before anybody is known: a handshake's answer has no room, and waits for none."""
    clock = SteeredClock(MachineClock())
    async with GatedNode(tmp_path, SecurityConfig(address_connection_rate=4), clock) as node:
        loop = asyncio.get_running_loop()
        at_once = clock.monotonic()
        clock.steer(lambda: at_once)
        wires = [await node.connect(sasl=sasl) for _ in range(6)]
        question = api_versions(Ids({}), 3)
        pauses = []
        for wire in wires:
            if sasl:
                await wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            began = loop.time()
            pauses.append((await wire.call(question, 3)).throttle_time_ms)
            assert (await wire.call(question, 3)).throttle_time_ms == 0
            assert loop.time() - began >= pauses[-1] / 1000 - 0.002
        assert pauses[-2:] == [pauses[-3] + 250, pauses[-3] + 500], "six at once are more than four a second"
        assert node.broker.security.rates.throttled["address"] == sum(1 for pause in pauses if pause) >= 2
