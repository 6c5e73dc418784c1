"""What clients are asked for, and when they may ask and push: as Apache Kafka 4.2's ClientMetricsManager."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from broker.handlers.telemetry import TelemetryHandlers
from broker.requests.context import RequestContext
from broker.security.session import ClientSession
from broker.telemetry.client_instances import CLIENTS_AT_ONCE
from broker.telemetry.subscriptions import ATTRIBUTE_LENGTH_MAX, Client, Subscriptions, Wanted, subscription_id_of
from broker.telemetry.telemetry import WAITING_OF_TENANT_MAX, ClientTelemetry, Push
from common.client_metrics import SELECTORS
from common.client_patterns import Matcher
from common.errors import ErrorCode
from common.metrics import Metrics
from common.node_settings.telemetry import TelemetrySettings
from common.pacing import SLICE_COST, Work, at_once
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ConfigRecord, ResourceType
from records.compression import Compression, compress
from tests.broker.broker_world import over_the_wire, reply_over_the_wire
from tests.broker.otlp import PREFIX, counter, gauge
from tests.common.call_count import counted_calls
from tests.common.metric_rules import problems
from wire.messages import GetTelemetrySubscriptionsRequest, PushTelemetryRequest

T = TypeVar("T")

INTERVAL_MS = 1_000
ALPHA, BETA = "lkc-aaaaaa", "lkc-bbbbbb"


def with_subscription(image: MetadataImage, name: str, **given: str) -> MetadataImage:
    names = {"interval_ms": "interval.ms"}
    return replayed(
        image,
        [ConfigRecord(ResourceType.CLIENT_METRICS, name, names.get(key, key), value) for key, value in given.items()],
    )


class Lab:
    """A broker's telemetry with its handlers, under a clock that stands."""

    def __init__(self, **limits: int) -> None:
        self.image = with_subscription(EMPTY_IMAGE, "all", metrics=PREFIX, interval_ms=str(INTERVAL_MS))
        self.now_ms = 0.0
        config = TelemetrySettings(**limits)
        self.telemetry = ClientTelemetry(lambda: self.image, config, lambda: self.now_ms)
        self.handlers = TelemetryHandlers(self.telemetry, random.Random(1), config.max_bytes)
        self.metrics = Metrics()
        self.telemetry.register(self.metrics)

    def context(self, key: int, tenant: str | None, client_id: str = "c") -> RequestContext:
        session = ClientSession("L", False, "10.0.0.1", None, tenant=tenant)
        session.introduce("librdkafka", "2.6.0")
        return RequestContext(session, key, 0, 1, client_id)

    def get(self, instance: UUID | None = None, tenant: str | None = None, client_id: str = "c") -> Any:
        context = self.context(71, tenant, client_id)
        request = over_the_wire(0, GetTelemetrySubscriptionsRequest(client_instance_id=instance))
        return reply_over_the_wire(context, self.handlers.get_telemetry_subscriptions(context, request))

    async def push(
        self,
        told: Any,
        data: bytes = b"",
        *,
        tenant: str | None = None,
        codec: int = 0,
        subscription: int | None = None,
        terminating: bool = False,
    ) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=told.client_instance_id,
            subscription_id=told.subscription_id if subscription is None else subscription,
            terminating=terminating,
            compression_type=codec,
            metrics=data,
        )
        context = self.context(72, tenant)
        answer = await self.handlers.push_telemetry(context, over_the_wire(0, request))
        return ErrorCode(reply_over_the_wire(context, answer).error_code)

    def shown(self) -> list[str]:
        text = self.metrics.text().decode()
        assert problems(text) == []
        return [
            line
            for line in text.splitlines()
            if line.startswith(("tidelog_client_metric{", "tidelog_client_metric_total{"))
        ]

    def value(self, name: str) -> float:
        lines = [line for line in self.metrics.text().decode().splitlines() if line.startswith(name + " ")]
        return float(lines[0].split()[-1])


def metrics_of(**values: float) -> bytes:
    data = MetricsData()
    for name, value in values.items():
        gauge(data, name, value)
    return bytes(data.SerializeToString())


@pytest.mark.parametrize(
    ("instance", "expected"), [(UUID(int=5), -207356809), (UUID(int=1), -207356813),
                               (UUID("d8b30025-2a65-4554-ac9c-bfe14a6624d1"), -410049997)]
)  # fmt: skip
def test_subscription_ids_are_apache_kafkas(instance: UUID, expected: int) -> None:
    """These are its answers."""
    assert subscription_id_of(("org.apache.kafka.",), 1_000, instance) == expected


def test_a_client_gets_an_id_and_what_it_is_asked_for() -> None:
    told = Lab().get()
    assert told.client_instance_id is not None and told.error_code == 0
    assert (told.requested_metrics, told.push_interval_ms, told.telemetry_max_bytes) == ([PREFIX], INTERVAL_MS, 1 << 20)
    assert (told.accepted_compression_types, told.delta_temporality) == ([4, 3, 1, 2], True)


def test_without_a_subscription_nothing_is_asked_for() -> None:
    lab = Lab()
    lab.image = EMPTY_IMAGE
    told = lab.get()
    assert (told.error_code, told.requested_metrics, told.push_interval_ms) == (0, [], 300_000)


def wanted(image: MetadataImage, client: Client) -> Wanted:
    subscriptions = Subscriptions(lambda: image)
    at_once(subscriptions.following())
    return at_once(subscriptions.wanted(client))


CLIENT = Client(UUID(int=5), "app-7", "apache-kafka-java", "4.2.0", "10.0.0.1", 50123)
MATCHES: list[tuple[str, bool]] = [
    ("", True),
    ("client_id=app-.*", True),
    ("client_id=app", False),
    ("client_id=app-.*,client_software_name=librdkafka", False),
    ("client_id=app-.*,client_software_name=apache-.*", True),
    ("client_software_version=4\\.2\\..*", True),
    ("client_source_address=10\\..*", True),
    ("client_source_port=50123", True),
    ("client_instance_id=AAAAAAAAAAAAAAAAAAAABQ", True),
]


@pytest.mark.parametrize(("match", "fits"), MATCHES)
def test_a_subscription_matches_by_all_its_patterns(match: str, fits: bool) -> None:
    image = with_subscription(EMPTY_IMAGE, "s", metrics="m.", match=match)
    assert wanted(image, CLIENT).metrics == (("m.",) if fits else ())


def test_a_client_is_asked_for_all_that_matches_at_the_shortest_interval() -> None:
    image = with_subscription(EMPTY_IMAGE, "s1", metrics="b.,a.", interval_ms="7000")
    image = with_subscription(image, "s2", metrics="a.,c.", interval_ms="5000")
    image = with_subscription(image, "s3", metrics="*", match="client_id=other")
    found = wanted(image, CLIENT)
    assert (found.metrics, found.interval_ms) == (("a.", "b.", "c."), 5_000)
    everything = with_subscription(image, "s4", metrics="x,*")
    assert wanted(everything, CLIENT).metrics == ("*",)


def test_subscriptions_change_while_they_are_parsed() -> None:
    """Only what is whole counts, once, and no step costs more than a slice."""
    images = [EMPTY_IMAGE]
    for number in range(20):
        images.append(with_subscription(images[-1], f"s{number}", metrics=f"m{number}.", match="client_id=app.*"))
    image = images[10]
    subscriptions = Subscriptions(lambda: image)
    first, second = subscriptions.following(), subscriptions.following()
    costs = [next(first), next(second)]
    image = images[20]
    at_once(first)
    assert (subscriptions.version, at_once(subscriptions.wanted(CLIENT)).metrics) == (0, ())
    costs += list(subscriptions.following())
    at_once(second)
    assert subscriptions.version == 1
    costs += list(subscriptions.wanted(CLIENT))
    assert len(at_once(subscriptions.wanted(CLIENT)).metrics) == 20
    assert max(costs) < SLICE_COST


def test_a_slow_pattern_is_a_step_of_its_own() -> None:
    match = ",".join(selector + r"=(?:\C?){999}" for selector in SELECTORS)
    image = with_subscription(EMPTY_IMAGE, "s", metrics="m.", match=match)
    subscriptions = Subscriptions(lambda: image)
    costs = list(subscriptions.following())
    assert (len(costs), max(costs) < SLICE_COST) == (len(SELECTORS) + 1, True)
    client = Client(UUID(int=5), "ab" * 128, "ab" * 128, "ab" * 128, "10.0.0.1", 50123)
    work = subscriptions.wanted(client)
    matched: list[tuple[int, int]] = []
    cost: int | None = 0
    while cost is not None:
        with counted_calls(Matcher.__call__) as count:
            cost = next(work, None)
        matched.append((count.calls, cost or 0))
    assert (sum(calls for calls, _ in matched), max(calls for calls, _ in matched)) == (len(SELECTORS), 1)
    assert sum(cost for calls, cost in matched if calls) > 3 * 256 * 2_000 / 100


def test_a_long_name_matches_nothing() -> None:
    image = with_subscription(EMPTY_IMAGE, "s", metrics="m.", match="client_id=.*")
    bytes_max = ATTRIBUTE_LENGTH_MAX
    for name, fits in (("c" * bytes_max, True), ("c" * (bytes_max + 1), False), ("ä" * (bytes_max // 2 + 1), False)):
        assert wanted(image, Client(UUID(int=5), name, "", "", "", 0)).metrics == (("m.",) if fits else ()), name


# asking and pushing ----------------------------------------------------------------------------------------


async def test_the_first_push_may_come_at_once_and_the_next_after_an_interval() -> None:
    lab = Lab()
    told = lab.get()
    assert await lab.push(told) == ErrorCode.NONE
    lab.now_ms = INTERVAL_MS - 1
    assert await lab.push(told) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert lab.get(told.client_instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    lab.now_ms = INTERVAL_MS
    assert await lab.push(told) == ErrorCode.NONE


async def test_after_an_unknown_subscription_a_client_may_ask_at_once() -> None:
    lab = Lab()
    told = lab.get()
    assert await lab.push(told, subscription=told.subscription_id + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert lab.get(told.client_instance_id).error_code == 0
    assert await lab.push(told) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def test_after_a_change_of_subscriptions_the_old_id_is_unknown_and_the_client_may_ask() -> None:
    lab = Lab()
    told = lab.get()
    assert await lab.push(told, metrics_of(m=1)) == ErrorCode.NONE
    lab.image = with_subscription(lab.image, "more", metrics="x.")
    assert await lab.push(told) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = lab.get(told.client_instance_id)
    assert again.requested_metrics == sorted([PREFIX, "x."]) and again.subscription_id != told.subscription_id
    assert len(lab.shown()) == 1


async def test_a_terminating_client_may_push_early_and_then_no_more() -> None:
    lab = Lab()
    told = lab.get()
    assert await lab.push(told) == ErrorCode.NONE
    assert await lab.push(told, metrics_of(last=1), terminating=True) == ErrorCode.NONE
    assert await lab.push(told) == ErrorCode.INVALID_REQUEST
    assert len(lab.shown()) == 1, "what it pushed last is there to be scraped"


@pytest.mark.parametrize("instance", [None, UUID(int=0), UUID(int=1)])
async def test_a_push_needs_an_instance_id(instance: UUID | None) -> None:
    lab = Lab()
    told = lab.get()
    told.client_instance_id = instance
    assert await lab.push(told) == ErrorCode.INVALID_REQUEST


async def test_what_cannot_be_taken() -> None:
    lab = Lab(max_bytes=100)
    for code, data, codec in (
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"", 9),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"", -1),
        (ErrorCode.TELEMETRY_TOO_LARGE, b"x" * 101, 0),
        (ErrorCode.TELEMETRY_TOO_LARGE, compress(Compression.ZSTD, bytes(101)), 4),
        (ErrorCode.INVALID_RECORD, b"\xff\xff", 0),
        (ErrorCode.INVALID_RECORD, b"no gzip", 1),
        (ErrorCode.NONE, b"", 0),
    ):
        assert await lab.push(lab.get(), data, codec=codec) == code
    assert lab.shown() == []


async def test_only_what_was_asked_for_is_shown() -> None:
    lab = Lab()
    data = MetricsData()
    gauge(data, "m", 1)
    data.resource_metrics[0].scope_metrics[0].metrics[0].name = "other.m"
    assert await lab.push(lab.get(), data.SerializeToString()) == ErrorCode.NONE
    assert (lab.shown(), lab.value("tidelog_telemetry_dropped_total")) == ([], 1)


async def test_series_are_by_tenant_and_instances_of_two_tenants_are_two_clients() -> None:
    lab = Lab(tenant_series_max=2)
    for tenant, value in ((ALPHA, 1), (BETA, 2), (None, 3)):
        told = lab.get(UUID(int=5), tenant)
        assert await lab.push(told, metrics_of(m=value, n=value, beyond=value), tenant=tenant) == ErrorCode.NONE
    shown = lab.shown()
    assert len(shown) == 6
    assert sum(f'tenant="{ALPHA}"' in line and line.endswith(" 1.0") for line in shown) == 2
    assert sum(f'tenant="{BETA}"' in line and line.endswith(" 2.0") for line in shown) == 2
    assert sum('tenant=""' in line and line.endswith(" 3.0") for line in shown) == 2
    assert lab.value("tidelog_telemetry_dropped_total") == 3


async def test_a_client_that_is_not_heard_of_goes_with_its_series() -> None:
    lab = Lab()
    told = lab.get()
    data = MetricsData()
    counter(data, "m", 1)
    assert await lab.push(told, data.SerializeToString()) == ErrorCode.NONE
    lab.now_ms = 59_999
    assert len(lab.shown()) == 1
    lab.now_ms = 60_000
    assert (lab.shown(), lab.value("tidelog_telemetry_clients")) == ([], 0)


async def test_the_clients_heard_of_longest_ago_go_first() -> None:
    lab = Lab(clients_max=2)
    first, second = lab.get(), lab.get()
    for told in (first, second):
        assert await lab.push(told, metrics_of(m=1)) == ErrorCode.NONE
    lab.now_ms = INTERVAL_MS
    assert await lab.push(first, metrics_of(m=1)) == ErrorCode.NONE
    lab.get()
    assert lab.value("tidelog_telemetry_clients") == 2
    (line,) = lab.shown()
    assert lab.value("tidelog_telemetry_series") == 1 and "client_id" in line


@pytest.mark.parametrize("tenant", [ALPHA, None])
async def test_clients_that_only_ask_drive_out_no_client_with_series(tenant: str | None) -> None:
    """Neither of another tenant nor of their own."""
    lab = Lab(clients_max=8)
    for other in (ALPHA, BETA, None):
        for _ in range(2):
            assert await lab.push(lab.get(tenant=other), metrics_of(m=1), tenant=other) == ErrorCode.NONE
    before = lab.shown()
    for _ in range(20):
        assert lab.get(tenant=tenant).error_code == 0
    assert lab.value("tidelog_telemetry_clients") == 8
    assert lab.shown() == before


async def test_a_tenants_clients_take_no_place_beyond_an_equal_share() -> None:
    lab = Lab(clients_max=8)
    for tenant in (BETA, ALPHA):
        for _ in range(20):
            assert await lab.push(lab.get(tenant=tenant), metrics_of(m=1), tenant=tenant) == ErrorCode.NONE
    shown = lab.shown()
    assert len(shown) == 8
    for tenant in (ALPHA, BETA):
        assert sum(f'tenant="{tenant}"' in line for line in shown) == 4


async def test_few_pushes_wait_to_be_decoded() -> None:
    lab = Lab()
    clients = [lab.get(tenant=ALPHA) for _ in range(WAITING_OF_TENANT_MAX + 3)]
    codes = await asyncio.gather(*(lab.push(told, metrics_of(m=1), tenant=ALPHA) for told in clients))
    assert codes.count(ErrorCode.NONE) == WAITING_OF_TENANT_MAX
    assert codes.count(ErrorCode.THROTTLING_QUOTA_EXCEEDED) == 3
    assert await lab.push(lab.get(tenant=ALPHA), metrics_of(m=1), tenant=ALPHA) == ErrorCode.NONE


async def test_no_push_waits_for_another_tenants() -> None:
    lab = Lab()
    of_alpha, of_beta = lab.get(tenant=ALPHA), lab.get(tenant=BETA)
    begun, goes_on, works = asyncio.Event(), asyncio.Event(), list[object]()

    async def slow(work: Work[T]) -> T:
        works.append(work)
        if len(works) == 2:  # it is known by now, and its metrics are read
            begun.set()
            await goes_on.wait()
        return at_once(work)

    client = Client(of_alpha.client_instance_id, "c", "", "", "", 0)
    push = Push(of_alpha.subscription_id, terminating=False, codec=0, data=metrics_of(m=1))
    slow_push = asyncio.create_task(lab.telemetry.push(ALPHA, client, push, slow))
    await begun.wait()
    assert await lab.push(of_beta, metrics_of(m=1), tenant=BETA) == ErrorCode.NONE
    assert len(lab.shown()) == 1
    goes_on.set()
    await slow_push
    assert len(lab.shown()) == 2


async def test_what_nobody_asked_for_is_not_read() -> None:
    lab = Lab()
    lab.image = EMPTY_IMAGE
    for data in (metrics_of(m=1), b"\xff\xff"):
        assert await lab.push(lab.get(), data) == ErrorCode.NONE
    assert (lab.shown(), lab.value("tidelog_telemetry_dropped_total")) == ([], 0)


async def test_clients_with_many_series_that_go_together_are_forgotten_in_steps() -> None:
    """The request at which they go releases them in slices, and has their room."""
    each = 1_000
    lab = Lab(series_max=3 * each, tenant_series_max=3 * each)
    for _ in range(3):
        assert await lab.push(lab.get(), metrics_of(**{f"m{n}": n for n in range(each)})) == ErrorCode.NONE
    assert lab.value("tidelog_telemetry_series") == 3 * each
    lab.now_ms += 1e6
    work, steps = lab.telemetry.subscription("", CLIENT), 0
    while True:
        with counted_calls() as count:
            cost = next(work, None)
        assert count.calls < 500
        if cost is None:
            break
        assert cost < SLICE_COST / 10
        steps += 1
    assert steps >= 3 * each
    assert lab.value("tidelog_telemetry_clients") == 1
    assert lab.value("tidelog_telemetry_series") == 0


@pytest.mark.parametrize("expired", [False, True])
def test_a_scrape_looks_at_clients_without_series_in_pieces(expired: bool) -> None:
    lab, count = Lab(), 20 * CLIENTS_AT_ONCE
    for number in range(count):
        lab.get(UUID(int=number + 2))
    lab.metrics.text()  # the first one imports a library
    lab.now_ms += 1e6 * expired
    pieces, most, number = lab.metrics.pieces(), 0, 0
    while True:
        with counted_calls() as calls:
            piece = next(pieces, None)
        if piece is None:
            break
        most, number = max(most, calls.calls), number + 1
    assert most < (60 if expired else 10) * CLIENTS_AT_ONCE
    assert number > 2 * count / CLIENTS_AT_ONCE / (1 + expired)
    assert lab.value("tidelog_telemetry_clients") == (0 if expired else count)


# against a second version of the rules ---------------------------------------------------------------------


class Model:
    """One client, by the words of KIP-714."""

    def __init__(self) -> None:
        self.got_ms = self.pushed_ms = -1e9
        self.ended, self.error = False, ErrorCode.NONE

    def get(self, now_ms: float) -> ErrorCode:
        early = now_ms - self.got_ms < INTERVAL_MS or now_ms - self.pushed_ms < INTERVAL_MS
        if early and self.error not in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if not early:
            self.got_ms = now_ms
        self.error = ErrorCode.NONE
        return self.error

    def push(self, now_ms: float, *, terminating: bool, known: bool, codec: int) -> ErrorCode:
        self.error = self._pushed(now_ms, terminating, known, codec)
        self.ended = terminating
        return self.error

    def _pushed(self, now_ms: float, terminating: bool, known: bool, codec: int) -> ErrorCode:
        if self.ended:
            return ErrorCode.INVALID_REQUEST
        if self.got_ms > self.pushed_ms or now_ms - self.pushed_ms >= INTERVAL_MS:
            self.pushed_ms = now_ms
        elif not terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if not known:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        return ErrorCode.NONE if 0 <= codec <= 4 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


STEPS = st.one_of(
    st.just({"what": "get"}),
    st.fixed_dictionaries(
        {"what": st.just("push"), "terminating": st.booleans(), "known": st.booleans(), "codec": st.integers(0, 5)}
    ),
    st.fixed_dictionaries({"what": st.just("wait"), "ms": st.sampled_from([1, 500, 999, 1_000, 2_500])}),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=25))
async def test_whatever_a_client_does_it_is_answered_by_the_rules(steps: list[Mapping[str, Any]]) -> None:
    lab, model = Lab(), Model()
    told = lab.get()
    model.get(0)
    for step in steps:
        if step["what"] == "wait":
            lab.now_ms += step["ms"]
        elif step["what"] == "get":
            assert lab.get(told.client_instance_id).error_code == model.get(lab.now_ms)
        else:
            known, codec, terminating = step["known"], step["codec"], step["terminating"]
            subscription = told.subscription_id + (not known)
            code = await lab.push(told, codec=codec, subscription=subscription, terminating=terminating)
            assert code == model.push(lab.now_ms, terminating=terminating, known=known, codec=codec)
