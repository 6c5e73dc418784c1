"""How long followers take to acknowledge, as a leader measures it."""

from __future__ import annotations

from broker.partitions.ack_delays import BUCKETS, PATIENCE_S, SAMPLE_INTERVAL_S, AckDelays
from broker.partitions.replica_set import CAUGHT_UP_S, ReplicaSet


def led(delays: AckDelays, isr: tuple[int, ...] = (0, 1, 2)) -> ReplicaSet:
    replicas = ReplicaSet(0, (0, 1, 2), isr, 1, 1, 0.0, None, delays)
    for node in (1, 2):
        fetched(replicas, node, 100, 0.0)
    return replicas


def fetched(replicas: ReplicaSet, node: int, offset: int, now: float, own_end: int = 100) -> None:
    replicas.followers[node].fetched(offset, 0, 1, None, 0, 0, own_end, now)


def test_the_time_from_an_append_to_the_fetch_past_it() -> None:
    delays = AckDelays()
    replicas = led(delays)
    replicas.appended(110, True, 10.0)
    fetched(replicas, 1, 109, 10.1, 110)
    fetched(replicas, 1, 110, 10.2, 110)
    fetched(replicas, 2, 115, 10.001, 115)
    (one, other) = delays.take()
    assert (one.broker_id, one.samples, other.broker_id, other.samples) == (1, 1, 2, 1)
    assert 0.2 <= one.p99_s <= 0.2 * 1.2
    assert 0.001 <= other.p99_s <= 0.0013
    assert delays.take() == []


def test_one_sample_of_a_broker_at_a_time_and_not_too_many() -> None:
    delays = AckDelays()
    first, second = led(delays), led(delays)
    first.appended(110, True, 10.0)
    second.appended(110, True, 10.0)  # too early for another one
    second.appended(120, True, 10.0 + SAMPLE_INTERVAL_S)  # the first is still under way
    fetched(second, 1, 120, 10.5, 120)
    assert delays.take() == []
    fetched(first, 1, 110, 10.5, 110)
    assert [row.samples for row in delays.take()] == [1]
    second.appended(130, True, 11.0)
    fetched(second, 1, 130, 11.1, 130)
    assert [(row.broker_id, row.samples) for row in delays.take()] == [(1, 1)]


def test_a_sample_of_a_leadership_that_ended_makes_room_for_others() -> None:
    delays = AckDelays()
    led(delays).appended(110, True, 10.0)
    replicas = led(delays)
    replicas.appended(110, True, 10.0 + PATIENCE_S)
    fetched(replicas, 1, 110, 10.1 + PATIENCE_S, 110)
    assert [(row.broker_id, row.samples) for row in delays.take()] == [(1, 1)]


def test_a_replica_that_still_copies_is_not_timed_but_a_slow_one_out_of_the_isr_is() -> None:
    delays = AckDelays()
    replicas = led(delays, isr=(0, 1))
    now = 1.0 + CAUGHT_UP_S
    fetched(replicas, 1, 100, now - 1)
    replicas.appended(110, True, now)
    fetched(replicas, 2, 110, now + 5, 110)
    assert delays.take() == [], "it was far behind"
    fetched(replicas, 1, 110, now + 5, 110)
    assert [row.broker_id for row in delays.take()] == [1]
    replicas.appended(120, True, now + 6)
    fetched(replicas, 2, 120, now + 7, 120)
    assert [row.broker_id for row in delays.take()] == [2], "it has caught up since"


def test_the_p99_of_many_and_the_bound_of_what_is_kept() -> None:
    delays = AckDelays()
    replicas = led(delays)
    now = 0.0
    for number in range(1000):
        now += SAMPLE_INTERVAL_S + 0.5
        replicas.appended(200 + number, True, now)
        fetched(replicas, 1, 200 + number, now + (0.4 if number % 50 == 0 else 0.002), 200 + number)
    row = delays.take()[0]
    assert (row.broker_id, row.samples) == (1, 1000)
    assert 0.4 <= row.p99_s <= 0.48
    replicas.appended(5000, True, now + 1)
    fetched(replicas, 1, 5000, now + 1 + PATIENCE_S / 2, 5000)
    fetched(replicas, 1, 5001, now + 1e9, 5001)
    assert delays.take()[0].samples == 1
    assert BUCKETS <= 100
