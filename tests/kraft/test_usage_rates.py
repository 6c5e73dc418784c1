"""Rates from brokers' reports: exact for a broker that tells the truth over a bad network, bounded for any other."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.controller.reported_usage import ROUNDS_WAITED, ReportedUsage, describe_usage
from kraft.controller.usage_rates import (
    BYTES_PER_SECOND_MAX,
    COUNTER_MAX,
    PARTITIONS_MAX,
    PIECE_ROWS_MAX,
    SHARE_MAX,
    BrokerUse,
    Counters,
    Verdict,
    rates,
)
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.metadata import MetadataImage
from kraft.records import RemoveTenantRecord, TenantRecord
from tests.kraft.images import partition_of, registered, with_brokers, with_topic
from tests.kraft.usage_reports import partition_row, report, size_row, tenant_row, topic_row
from wire.messages import DescribeUsageRequest, ReportUsageRequest

ALPHA, BETA = "lkc-aaaaaa", "lkc-bbbbbb"
EPOCH = 7
INTERVAL_S = 5.0
WAITED_S = ROUNDS_WAITED * INTERVAL_S
TENANTS = (TenantRecord(ALPHA, "alpha", "default", 0), TenantRecord(BETA, "beta", "default", 0))
IMAGE = replayed(with_topic(), TENANTS)
ALL_OF_IT = DescribeUsageRequest(brokers=None, include_tenants=True, include_partitions=True)
NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 30_000))


def taken(use: BrokerUse, *requests: Any) -> None:
    assert [use.take(IMAGE, request, 0.0) for request in requests] == [Verdict.TAKEN] * len(requests)


def rate_of(use: BrokerUse, tenant: str) -> float | None:
    found = use.rates_of(use.tenants[tenant])
    return None if found is None else found.bytes_in


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), st.floats())
def test_rates_are_finite_and_bounded(before: Any, now: Any, passed_s: float) -> None:
    found = rates(Counters(*before), Counters(*now), passed_s)
    if found is not None:
        assert all(math.isfinite(rate) and rate >= 0 for rate in found)
        assert max(found.bytes_in, found.bytes_out) <= BYTES_PER_SECOND_MAX and found.busy <= SHARE_MAX


@given(st.lists(st.sampled_from(["heard", "lost", "answer lost", "doubled", "cut off"]), min_size=1, max_size=30))
def test_steady_use_has_one_rate_whatever_the_network_does(fates: list[str]) -> None:
    """A round has two pieces, each with a tenant; a piece without an answer is sent again with the next round."""
    use, unanswered = BrokerUse(EPOCH, 0.0), {ALPHA, BETA}
    for number, fate in enumerate(fates, 1):
        pieces = [
            report(0, EPOCH, number, 5_000 * number, piece=piece, is_last=piece == 1, bytes_in=10 * 5_000 * number,
                   tenants=[tenant_row(tenant, 4 * 5_000 * number)])
            for piece, tenant in enumerate((ALPHA, BETA))
        ]  # fmt: skip
        if fate == "lost":
            continue
        use.take(IMAGE, pieces[0], 0.0)
        if fate == "cut off":
            continue
        if fate == "doubled":
            assert use.take(IMAGE, pieces[0], 0.0) is Verdict.REPEATED
        assert use.take(IMAGE, pieces[1], 0.0) is Verdict.TAKEN
        if fate == "answer lost":
            assert use.take(IMAGE, pieces[1], 0.0) is Verdict.REPEATED
    found = [rate_of(use, tenant) for tenant in unanswered if tenant in use.tenants]
    assert all(rate is None or rate == pytest.approx(4_000) for rate in found)
    if use.head is not None and use.head.rates is not None:
        assert use.head.rates.bytes_in == pytest.approx(10_000)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "round_number": NUMBERS,
                "uptime_ms": NUMBERS,
                "piece": st.integers(-1, 2),
                "is_last": st.booleans(),
                "bytes_in": NUMBERS,
                "cpu_ms": NUMBERS,
                "moved_bytes": NUMBERS,
                "disk_used_bytes": NUMBERS,
                "disk_size_bytes": NUMBERS,
                "connections": st.integers(-3, 3),
                "interval_ms": NUMBERS,
                "tenants": st.lists(
                    st.builds(tenant_row, st.sampled_from(["", ALPHA, "lkc-zzzzzz", "x"]), NUMBERS), max_size=4
                ),
                "partitions": st.lists(
                    st.builds(partition_row, st.sampled_from([partition_of(IMAGE).topic_id, bytes(16)]), NUMBERS),
                    max_size=3,
                ),
                "topics": st.lists(st.builds(topic_row, st.just(bytes(16)), NUMBERS), max_size=2),
            }
        ),
        max_size=8,
    )
)
def test_a_liar_harms_nobody_and_is_believed_again_when_it_has_stopped(lies: list[dict[str, Any]]) -> None:
    usage, now = ReportedUsage(INTERVAL_S), 0.0
    epoch = IMAGE.brokers[0].epoch
    for lie in lies:
        now += 1.0
        with contextlib.suppress(ProtocolError):
            usage.take(IMAGE, report(0, epoch, **lie), now)
        answer = at_once(describe_usage(IMAGE, ALL_OF_IT, usage, now)).reply
        for row in answer.brokers[0].tenants:
            assert row.tenant in ("", ALPHA)
            assert -1 <= row.in_rate <= BYTES_PER_SECOND_MAX and 0 <= row.bytes_in <= COUNTER_MAX
        assert -1 <= answer.brokers[0].in_rate <= BYTES_PER_SECOND_MAX
        assert all(0 <= row.in_rate <= BYTES_PER_SECOND_MAX for row in answer.brokers[0].partitions)
    for number in (5, 6):
        now += WAITED_S + 1 if number == 5 else INTERVAL_S
        usage.take(IMAGE, report(0, epoch, number, 5_000 * number, bytes_in=100 * number), now)
    found = usage.rates_of(0, now)
    assert found is not None and found.bytes_in == pytest.approx(20)


@pytest.mark.parametrize("rows", ["tenants", "partitions", "topics", "ack_delays", "sizes"])
def test_a_piece_with_more_rows_than_a_broker_sends_is_not_looked_at(rows: str) -> None:
    row = {
        "tenants": tenant_row(ALPHA, 7),
        "partitions": partition_row(bytes(16), 7),
        "topics": topic_row(bytes(16), 7),
        "sizes": size_row(bytes(16), 7),
        "ack_delays": ReportUsageRequest.AckDelayReport(follower_id=1, samples=7, p99_us=7),
    }[rows]
    use, piece = BrokerUse(EPOCH, 0.0), [row] * PIECE_ROWS_MAX

    def fields(given: list[Any]) -> dict[str, Any]:
        return {rows: given}

    for more in ([row], piece * 99):
        assert use.take(IMAGE, report(0, EPOCH, **fields(piece + more)), 0.0) is Verdict.ABSURD
    assert (use.head, use.open_round) == (None, 0)
    assert use.take(IMAGE, report(0, EPOCH, **fields(piece)), 0.0) is Verdict.TAKEN


def test_a_tenant_that_a_round_does_not_name_uses_nothing() -> None:
    use = BrokerUse(EPOCH, 0.0)
    taken(use, report(0, EPOCH, 1, 5_000, tenants=[tenant_row(ALPHA, 5_000)]))
    assert rate_of(use, ALPHA) == 1_000
    taken(use, report(0, EPOCH, 2, 10_000))
    assert rate_of(use, ALPHA) == 0
    taken(use, report(0, EPOCH, 3, 15_000, tenants=[tenant_row(ALPHA, 10_000), tenant_row(BETA, 500)]))
    assert (rate_of(use, ALPHA), rate_of(use, BETA)) == (1_000, 100), "over the last round, not since it was named"


def test_a_controller_that_comes_late_learns_rates_from_the_second_round() -> None:
    use = BrokerUse(EPOCH, 0.0)
    taken(use, report(0, EPOCH, 9, 45_000, bytes_in=900, tenants=[tenant_row(ALPHA, 900)]))
    assert rate_of(use, ALPHA) is None and use.head is not None and use.head.rates is None
    taken(use, report(0, EPOCH, 10, 50_000, bytes_in=1_900, tenants=[tenant_row(ALPHA, 1_900)]))
    assert rate_of(use, ALPHA) == 200
    assert use.head.rates is not None and use.head.rates.bytes_in == 200


def test_a_counter_that_has_fallen_begins_anew() -> None:
    use = BrokerUse(EPOCH, 0.0)
    taken(use, report(0, EPOCH, 1, 5_000, tenants=[tenant_row(ALPHA, 5_000)]))
    taken(use, report(0, EPOCH, 2, 10_000, tenants=[tenant_row(ALPHA, 100)]))
    assert rate_of(use, ALPHA) is None
    taken(use, report(0, EPOCH, 3, 15_000, tenants=[tenant_row(ALPHA, 600)]))
    assert rate_of(use, ALPHA) == 100


def test_a_piece_is_taken_in_its_turn_alone() -> None:
    use = BrokerUse(EPOCH, 0.0)

    def piece(number: int, round_number: int = 1, uptime_ms: int = 5_000, **fields: Any) -> Verdict:
        return use.take(IMAGE, report(0, EPOCH, round_number, uptime_ms, piece=number, **fields), 0.0)

    assert piece(1) is Verdict.OUT_OF_ORDER
    assert piece(0, is_last=False) is Verdict.TAKEN
    assert piece(2) is Verdict.OUT_OF_ORDER
    assert piece(1, uptime_ms=6_000) is Verdict.ABSURD
    assert use.round == 0, "the round is not whole"
    assert piece(1) is Verdict.TAKEN
    assert piece(1) is Verdict.REPEATED
    assert piece(0, 2, uptime_ms=5_000) is Verdict.ABSURD, "time does not stand still between rounds"
    assert piece(0, 3, uptime_ms=9_000, is_last=False) is Verdict.TAKEN
    assert piece(0, 2, uptime_ms=8_000) is Verdict.REPEATED, "late"
    assert (use.round, use.uptime_ms) == (1, 5_000)


def test_partitions_are_bounded_and_only_those_that_exist_count() -> None:
    use, topic_id = BrokerUse(EPOCH, 0.0), partition_of(IMAGE).topic_id
    rows = [partition_row(topic_id, 5_000)] * PARTITIONS_MAX
    taken(use, report(0, EPOCH, 1, 5_000, partitions=[partition_row(bytes(16), 5_000), *rows, *rows]))
    assert len(use.partitions) == PARTITIONS_MAX - 1, "the first was unknown"
    assert {(row.topic_id, row.partition, row.rate_in) for row in use.partitions} == {(topic_id, 0, 1_000)}
    taken(use, report(0, EPOCH, 2, 10_000, topics=[topic_row(topic_id, 10_000)]))
    assert use.partitions == [] and [row.rate_in for row in use.topics] == [2_000]


def test_sizes_stay_until_others_are_told() -> None:
    use, topic_id = BrokerUse(EPOCH, 0.0), partition_of(IMAGE).topic_id
    taken(use, report(0, EPOCH, 1, 5_000))
    assert (use.sizes, use.others_bytes) == ({}, None)
    rows = [size_row(bytes(16), 5), size_row(topic_id, 70)]
    taken(use, report(0, EPOCH, 2, 10_000, sizes=rows, others_bytes=9))
    assert (use.sizes, use.others_bytes) == ({(topic_id, 0): 70.0}, 9.0), "the first was unknown"
    taken(use, report(0, EPOCH, 3, 15_000))
    taken(use, report(0, EPOCH, 4, 20_000, sizes=[size_row(topic_id, -1)], is_last=False))
    taken(use, report(0, EPOCH, 5, 25_000))
    assert (use.sizes, use.others_bytes) == ({(topic_id, 0): 70.0}, 9.0), "that round was not whole"
    taken(use, report(0, EPOCH, 6, 30_000, sizes=[size_row(topic_id, -1)], others_bytes=0))
    assert (use.sizes, use.others_bytes) == ({}, 0.0)


# over all brokers ----------------------------------------------------------------------------------------------


def whole(usage: ReportedUsage, image: MetadataImage, broker_id: int, now: float, number: int = 1) -> None:
    epoch = image.brokers[broker_id].epoch
    rows = [tenant_row(ALPHA, 1_000 * number)]
    usage.take(image, report(broker_id, epoch, number, 5_000 * number, bytes_in=1_000 * number, tenants=rows), now)


def test_an_epoch_that_is_not_the_brokers_is_refused() -> None:
    usage = ReportedUsage(INTERVAL_S)
    for broker_id, epoch in ((0, IMAGE.brokers[0].epoch + 1), (0, -1), (99, 0)):
        with pytest.raises(ProtocolError) as refused:
            usage.take(IMAGE, report(broker_id, epoch), 1.0)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert usage.of_broker(0, 1.0) is None


def test_a_broker_that_restarted_begins_at_zero() -> None:
    usage, image = ReportedUsage(INTERVAL_S), IMAGE
    whole(usage, image, 0, 1.0, number=3)
    again = registered(image, 0, life=1, previous_epoch=image.brokers[0].epoch)
    whole(usage, again, 0, 2.0)
    found = usage.rates_of(0, 2.0)
    assert found is not None and found.bytes_in == 200


def test_a_new_controller_knows_nothing_until_all_have_reported_or_had_the_time() -> None:
    image = replayed(with_brokers(2), TENANTS)
    usage = ReportedUsage(INTERVAL_S)
    usage.restart(100.0)
    assert not usage.is_known(image, 100.0)
    whole(usage, image, 0, 101.0)
    assert not usage.is_known(image, 101.0)
    whole(usage, image, 1, 102.0)
    assert usage.is_known(image, 102.0)
    usage.restart(103.0)
    assert usage.rates_of(0, 103.0) is None
    assert not usage.is_known(image, 103.0 + WAITED_S - 0.1)
    assert usage.is_known(image, 103.0 + WAITED_S)


def test_a_round_from_far_ahead_keeps_a_broker_out_for_a_moment_alone() -> None:
    usage = ReportedUsage(INTERVAL_S)
    whole(usage, IMAGE, 0, 1.0, number=1 << 30)
    whole(usage, IMAGE, 0, 2.0, number=2)
    found = usage.of_broker(0, 2.0)
    assert found is not None and found.round == 1 << 30
    whole(usage, IMAGE, 0, 2.0 + WAITED_S, number=5)
    found = usage.of_broker(0, 2.0 + WAITED_S)
    assert found is not None and found.round == 5


def test_what_a_silent_broker_said_counts_no_longer() -> None:
    usage = ReportedUsage(INTERVAL_S)
    whole(usage, IMAGE, 0, 1.0)
    assert usage.rates_of(0, 1.0 + WAITED_S) is not None
    assert usage.rates_of(0, 1.1 + WAITED_S) is None


def test_tenants_and_brokers_that_are_gone_are_forgotten() -> None:
    usage = ReportedUsage(INTERVAL_S)
    for broker_id in (0, 1):
        whole(usage, IMAGE, broker_id, 1.0)
    delta = MetadataDelta(IMAGE)
    delta.replay_all([RemoveTenantRecord(ALPHA)])
    image = delta.image()
    usage.applied(delta, image)
    left = usage.of_broker(0, 1.0)
    assert left is not None and left.tenants == {}
    again = registered(image, 0, life=1, previous_epoch=image.brokers[0].epoch)
    delta = MetadataDelta(image)
    delta.replay_all([RemoveTenantRecord(BETA)])
    delta.brokers_changed[0] = again.brokers[0]
    usage.applied(delta, again)
    assert usage.of_broker(0, 1.0) is None and usage.of_broker(1, 1.0) is not None


def test_a_row_of_each_broker_is_described() -> None:
    usage = ReportedUsage(INTERVAL_S)
    topic_id = partition_of(IMAGE).topic_id
    rows = [tenant_row(ALPHA, 5_000, connections=2, attempts=3), tenant_row("", 10_000)]
    usage.take(
        IMAGE,
        report(
            1,
            IMAGE.brokers[1].epoch,
            bytes_in=15_000,
            tenants=rows,
            partitions=[partition_row(topic_id, 5_000)],
            topics=[topic_row(topic_id, 2_500), topic_row(bytes(16), 1_000)],
            disk_used_bytes=60,
            disk_size_bytes=100,
        ),
        1.0,
    )
    request = DescribeUsageRequest(brokers=[1, 2, 99], include_tenants=True, include_partitions=True)
    answer = at_once(describe_usage(IMAGE, request, usage, 3.0)).reply
    one, other = answer.brokers
    assert not answer.is_known
    assert (one.broker_id, one.is_known, one.age_ms, one.in_rate, one.disk_used_bytes) == (1, True, 2_000, 3_000.0, 60)
    assert {row.tenant: (row.tenant_name, row.in_rate, row.connections) for row in one.tenants} == {
        ALPHA: ("alpha", 1_000.0, 2),
        "": ("", 2_000.0, 0),
    }
    assert [(row.topic, row.partition_index, row.in_rate) for row in one.partitions] == [("t", 0, 1_000.0)]
    assert [(row.topic, row.in_rate) for row in one.topics] == [("t", 500.0), ("", 200.0)]
    assert (other.broker_id, other.is_known, other.in_rate, other.age_ms) == (2, False, -1.0, -1)
    brief = at_once(describe_usage(IMAGE, DescribeUsageRequest(brokers=None), usage, 3.0)).reply
    assert len(brief.brokers) == 3 and not any(row.tenants or row.partitions for row in brief.brokers)
