"""Recorded clusters: the same model and plan as the controller's, and what is no record is refused."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from common.identifiers import ZERO_UUID
from common.pacing import at_once
from kraft.balancer.model import ModelBroker, ModelPartition, model_of
from kraft.balancer.move import Limits
from kraft.balancer.observed import BrokerReport, RateRow, building
from kraft.balancer.planner import plan
from kraft.balancer.recorded import (
    PartitionRate,
    RecordedBroker,
    RecordedHead,
    RecordedPartition,
    RecordedStanding,
    RecordedTopic,
    TopicRate,
    UnusableRecord,
    encoded,
    modelling,
    planned,
    read,
)
from kraft.image.delta import replayed
from kraft.records import PartitionRecord, TopicRecord
from tests.kraft.balancer_models import GB, LEAVING, MB, broker, partition
from tests.kraft.images import with_brokers

A, B = b"a" * 16, b"b" * 16
NAMES = {A: "alpha", B: "beta", ZERO_UUID: ""}
HEAD = encoded(RecordedHead())


def lines_of(brokers: Sequence[ModelBroker], partitions: Sequence[ModelPartition]) -> list[str]:
    """The record of a cluster in which every broker names all that it leads."""
    topics: dict[bytes, list[RecordedPartition]] = {}
    for one in partitions:
        row = RecordedPartition(
            one.partition, one.replicas, one.leader, one.in_sync, one.local_bytes or (), one.cell, one.stays
        )
        topics.setdefault(one.topic_id, []).append(row)
    rows = [
        RecordedBroker(
            one.broker_id,
            one.cell,
            one.rack,
            RecordedStanding[one.standing.name],
            one.load,
            one.disk_used,
            one.disk_size,
            one.in_capacity,
            one.replicas_max,
            [
                PartitionRate(row.topic_id.hex(), row.partition, row.in_rate, row.out_rate)
                for row in partitions
                if row.leader == one.broker_id
            ],
        )
        for one in brokers
    ]
    named = [RecordedTopic(topic_id.hex(), topic_id.hex(), found) for topic_id, found in topics.items()]
    return [HEAD, *map(encoded, rows), *map(encoded, named)]


def uneven() -> tuple[list[ModelBroker], list[ModelPartition]]:
    brokers = [broker(number, load=0.6 - 0.2 * number, disk_size=100 * GB, disk_used=10 * GB) for number in range(3)]
    partitions = [
        partition(number, (number % 2, 1 - number % 2), rate=MB * (number + 1), size=GB) for number in range(9)
    ]
    return brokers, partitions


def test_a_record_has_the_model_and_the_plan_of_the_cluster() -> None:
    brokers, partitions = uneven()
    expected = model_of(brokers, partitions)
    cluster = read(lines_of(brokers, partitions))
    found = at_once(modelling(cluster))
    for name in ("index", "in_rate", "out_rate", "leader_cost", "home", "stays", "leader", "holder", "size", "in_sync"):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name
    assert found.brokers == expected.brokers
    its_plan, changes = at_once(planned(cluster, Limits(improvement=0.0)))
    assert its_plan == plan(expected, Limits(improvement=0.0))
    assert its_plan.moves
    assert [change.move for change in changes] == list(its_plan.moves)
    assert all(set(change.before) != set(change.after) for change in changes if change.move.bytes_to_copy)


def test_what_reports_do_not_name_is_divided_as_the_controller_does() -> None:
    image = replayed(
        with_brokers(2),
        [
            TopicRecord("beta", B),
            TopicRecord("alpha", A),
            *(PartitionRecord(B, index, (index % 2,), (index % 2,), index % 2) for index in range(4)),
            *(PartitionRecord(A, index, (0, 1), (0, 1), 0) for index in range(3)),
        ],
    )
    named: list[RateRow] = [(A, 1, 70.0, 7.0)]
    rests: list[RateRow] = [(A, -1, 40.0, 20.0), (ZERO_UUID, -1, 10.0, 4.0)]
    brokers = [ModelBroker(number, "default", disk_used=900) for number in range(2)]
    expected = at_once(building(image, brokers, {0: BrokerReport(named, rests)}))
    reported = RecordedBroker(
        0,
        disk_used_bytes=900,
        partitions=[PartitionRate(NAMES[row[0]], row[1], row[2], row[3]) for row in named],
        topics=[TopicRate(NAMES[row[0]], row[2], row[3]) for row in rests],
    )
    topics = [
        RecordedTopic(
            topic.name,
            topic.topic_id.hex(),
            [RecordedPartition(one.partition, one.replicas, one.leader, one.isr) for one in topic.partitions.values()],
        )
        for topic in image.topics
    ]
    lines = [HEAD, encoded(reported), encoded(RecordedBroker(1, disk_used_bytes=900)), *map(encoded, topics)]
    found = at_once(modelling(read(reversed(lines))))
    for name in ("index", "in_rate", "out_rate", "leader", "holder", "size"):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name
    assert sum(found.in_rate) == 120.0


def test_a_broker_that_is_added_to_the_record_is_filled() -> None:
    brokers, partitions = uneven()
    silent = [msgspec.structs.replace(one, load=None) for one in brokers[:2]]
    lines = lines_of(silent, partitions)
    lines.append('{"record": "broker", "broker": 7, "disk_size_bytes": 100000000000, "disk_used_bytes": 0}')
    _, changes = at_once(planned(read(lines), Limits(toward=frozenset({7}), improvement=0.0)))
    assert changes
    assert all(7 in change.after and change.topic == partitions[0].topic_id.hex() for change in changes)


def test_a_broker_that_leaves_gives_everything() -> None:
    brokers, partitions = uneven()
    leaving = [
        msgspec.structs.replace(one, standing=LEAVING if one.broker_id == 0 else one.standing) for one in brokers
    ]
    _, changes = at_once(planned(read(lines_of(leaving, partitions)), Limits()))
    assert sum(0 in change.before and 0 not in change.after for change in changes) == 9


TOPIC = '{"record":"topic","topic":"t","id":"%s","partitions":[%s]}'
ROW = '{"partition":0,"replicas":[0],"leader":0,"in_sync":[0]}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 3"),
        (b"\xff", "line 3"),
        ("[]", "line 3"),
        ('{"record":"rack"}', "line 3: Invalid value 'rack'"),
        (HEAD, "line 3: a second line of the cluster"),
        ('{"record":"broker","broker":0}', "line 3: broker 0 is there twice"),
        ('{"record":"broker","broker":-1}', "line 3: Expected `int` >= 0"),
        ('{"record":"broker","broker":1,"load":1.5}', "line 3: Expected `float` <= 1"),
        ('{"record":"broker","broker":1,"standing":"lame"}', "line 3: Invalid enum value 'lame'"),
        ('{"record":"broker","broker":1,"topics":[{"topic":"t","in_rate":-1,"out_rate":0}]}', "line 3: Expected"),
        (TOPIC % ("0", ""), "line 3: Expected `str` matching"),
        (TOPIC % ("a" * 32, f"{ROW},{ROW}"), "line 3: t-0 is there twice"),
        (TOPIC % ("a" * 32, ROW.replace("[0]", "[]", 1)), "line 3: Expected `array` of length >= 1"),
        (TOPIC % ("a" * 32, ROW.replace("[0]", "[0,0]", 1)), "line 3: t-0 has two replicas on one broker"),
        (TOPIC % ("a" * 32, ROW[:-1] + ',"local_bytes":[1,2]}'), "line 3: t-0 has 1 replicas and 2 sizes"),
    ],
)
def test_what_is_no_record_is_refused_by_its_line(line: str | bytes, says: str) -> None:
    with pytest.raises(UnusableRecord) as refused:
        read([HEAD, '{"record":"broker","broker":0}', line])
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [HEAD],
        ['{"record":"broker","broker":0}'],
        ['{"record":"cluster","version":2}', '{"record":"broker","broker":0}'],
        [
            HEAD,
            '{"record":"broker","broker":0}',
            TOPIC % ("a" * 32, ROW),
            (TOPIC % ("a" * 32, ROW)).replace('"t"', '"u"'),
        ],
    ],
)
def test_a_record_that_is_not_whole_is_refused(lines: list[str]) -> None:
    with pytest.raises(UnusableRecord):
        read(lines)


def test_partitions_on_brokers_that_are_not_in_the_record_stay() -> None:
    row = '{"partition":0,"replicas":[9,0],"leader":9,"in_sync":[9]}'
    cluster = read([HEAD, '{"record":"broker","broker":0}', "", TOPIC % ("a" * 32, row)])
    assert list(at_once(modelling(cluster)).stays) == [1]
    assert at_once(planned(cluster, Limits()))[1] == []
