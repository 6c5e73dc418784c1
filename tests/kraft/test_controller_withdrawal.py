"""A broker whose storage is stuck stays while another broker is missing."""

from __future__ import annotations

from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import BrokerRegistrationChangeRecord, Cause, Health, HealthState
from tests.kraft.images import beaten, with_topic


def may_leave(image: MetadataImage, broker_id: int) -> bool:
    after, reply = beaten(image, broker_id, storage_stuck=True, want_fence=True)
    assert after.brokers[broker_id].fenced is reply.is_fenced
    return bool(reply.is_fenced)


def test_it_leaves_while_all_others_serve() -> None:
    image = with_topic()
    assert image.missing_beside(0) == []
    assert may_leave(image, 0)


def test_the_second_of_two_stays() -> None:
    image, _ = beaten(with_topic(), 0, storage_stuck=True, want_fence=True)
    assert image.missing_beside(1) == [0]
    assert not may_leave(image, 1)
    back, _ = beaten(image, 0)
    assert may_leave(back, 1), "the first one has its disk again"


def test_a_broker_that_stops_is_missing_soon() -> None:
    image, _ = beaten(with_topic(), 2, want_shut_down=True)
    assert image.missing_beside(0) == [2]
    assert not may_leave(image, 0)


def test_a_broker_without_replicas_is_not_missed() -> None:
    image, _ = beaten(with_topic([0, 1, 2], brokers=4), 3, want_fence=True)
    assert may_leave(image, 0)


def test_a_broker_that_was_put_aside_is_missing() -> None:
    image = with_topic()
    demoted = Health(HealthState.DEMOTED, Cause.UNSPECIFIED)
    image = replayed(image, [BrokerRegistrationChangeRecord(1, image.brokers[1].epoch, health=demoted)])
    assert image.missing_beside(0) == [1]
    assert not may_leave(image, 0)
