"""A broker whose storage is stuck stays while another broker is missing."""

from __future__ import annotations

from broker.membership import sick_others
from kraft.image.delta import replayed
from kraft.records import BrokerRegistrationChangeRecord, Cause, Health, HealthState
from tests.kraft.images import beaten, with_topic


def test_nothing_keeps_it_while_all_others_serve() -> None:
    assert sick_others(with_topic(), 0) == []


def test_it_does_not_count_itself() -> None:
    image, _ = beaten(with_topic(), 0, want_fence=True)
    assert sick_others(image, 0) == []
    assert sick_others(image, 1) == [0]


def test_a_broker_that_stops_is_missing_soon() -> None:
    image, _ = beaten(with_topic(), 2, want_shut_down=True)
    assert sick_others(image, 0) == [2]


def test_a_broker_without_replicas_is_missed_by_nobody() -> None:
    image, _ = beaten(with_topic([0, 1, 2], brokers=4), 3, want_fence=True)
    assert sick_others(image, 0) == []


def test_a_broker_that_was_put_aside_is_missing() -> None:
    image = with_topic()
    demoted = Health(HealthState.DEMOTED, Cause.UNSPECIFIED)
    image = replayed(image, [BrokerRegistrationChangeRecord(1, image.brokers[1].epoch, health=demoted)])
    assert sick_others(image, 0) == [1]
