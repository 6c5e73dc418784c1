"""The balancer's model from the image and brokers' reports."""

from __future__ import annotations

import msgspec
import pytest

from common.identifiers import ZERO_UUID
from common.pacing import at_once
from kraft.balancer.layout import DISK, LOAD, Layout, layout_of
from kraft.balancer.model import ClusterModel, LoadWeights, ModelBroker, ModelPartition, model_of
from kraft.balancer.observed import BrokerReport, building
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import PartitionChangeRecord, PartitionRecord, TenantRecord, TenantState, TopicRecord
from tests.kraft.images import with_brokers

A, B = b"a" * 16, b"b" * 16
GROUP = b"g" * 16
GB = 10**9


def _partition(topic_id: bytes, index: int, replicas: tuple[int, ...], **fields: object) -> PartitionRecord:
    record = PartitionRecord(topic_id, index, replicas, replicas, replicas[0])
    return msgspec.structs.replace(record, **fields)


def _image() -> MetadataImage:
    return replayed(
        with_brokers(3),
        [
            TopicRecord("beta", B),
            TopicRecord("alpha", A),
            *(_partition(B, index, (index % 3, (index + 1) % 3)) for index in range(4)),
            *(_partition(A, index, (0, 1)) for index in range(3)),
        ],
    )


def _brokers(**fields: object) -> list[ModelBroker]:
    return [msgspec.structs.replace(ModelBroker(number, "default"), **fields) for number in range(3)]


def _model(image: MetadataImage, **reports: BrokerReport) -> ClusterModel:
    by_id = {int(name.removeprefix("broker_")): report for name, report in reports.items()}
    return at_once(building(image, _brokers(disk_used=900), by_id))


def test_partitions_stand_in_the_order_of_their_keys() -> None:
    model = _model(_image())
    assert [model.key(number) for number in range(7)] == [(A, 0), (A, 1), (A, 2), (B, 0), (B, 1), (B, 2), (B, 3)]
    assert list(model.holder[:2]) == [0, 1]
    assert not any(model.stays)


def test_named_rates_count_and_rests_are_divided_among_what_a_broker_leads() -> None:
    model = _model(
        _image(),
        broker_0=BrokerReport(partitions=[(A, 1, 70.0, 7.0)], topics=[(A, -1, 40.0, 20.0), (ZERO_UUID, -1, 10.0, 4.0)]),
        broker_1=BrokerReport(partitions=[(A, 1, 5.0, 1.0)], topics=[(ZERO_UUID, -1, 6.0, 0.0)]),
    )
    # alpha is led by broker 0: one is named, by the former leader too, and two share the rest
    assert list(model.in_rate[:3]) == [20.0, 75.0, 20.0]
    # beta: 0 and 3 are led by broker 0, 1 by broker 1, 2 by the silent broker 2
    assert list(model.in_rate[3:]) == [5.0, 6.0, 0.0, 5.0]
    assert model.out_rate[1] == 8.0 + 75.0  # clients, and one follower
    assert model.out_rate[3] == 2.0 + 5.0


def test_sizes_that_are_not_reported_are_even_parts_of_what_is_left_on_the_disk() -> None:
    model = _model(_image(), broker_2=BrokerReport(local_bytes={(B, 1): 300.0}))
    sizes = {
        (model.key(partition), model.holder[replica]): model.size[replica]
        for partition in range(7)
        for replica in range(model.first[partition], model.first[partition + 1])
    }
    assert sizes[(B, 1), 2] == 300.0
    assert sizes[(B, 2), 2] == 600.0  # the other replica of broker 2
    assert sizes[(A, 0), 0] == 150.0  # one of six


def test_sizes_that_are_not_named_are_even_parts_of_what_a_broker_tells_of_them() -> None:
    """Its disk holds other things too."""
    model = _model(_image(), broker_2=BrokerReport(local_bytes={(B, 1): 300.0}, others_bytes=40.0))
    assert sorted(model.size[replica] for replica, slot in enumerate(model.holder) if slot == 2) == [40.0, 300.0]
    assert {model.size[replica] for replica, slot in enumerate(model.holder) if slot == 0} == {150.0}


def test_what_moves_or_lacks_a_leader_or_a_live_follower_stays() -> None:
    image = replayed(
        _image(),
        [
            PartitionChangeRecord(A, 0, replicas=(0, 1, 2), adding=(2,)),
            PartitionChangeRecord(A, 1, leader=-1),
            PartitionChangeRecord(A, 2, isr=(0,)),
        ],
    )
    model = _model(image)
    stays = [model.key(number)[1] for number in range(3) if model.stays[number]]
    active = [broker.broker_id for broker in image.brokers.values() if broker.is_active]
    assert stays == ([0, 1, 2] if 1 in active else [0, 1])


@pytest.mark.parametrize(("state", "stays"), [(TenantState.ACTIVE, 0), (TenantState.DELETING, 1)])
def test_a_tenants_partitions_belong_to_its_cell(state: TenantState, stays: int) -> None:
    record = TenantRecord(id="lkc-aaaaaa", name="acme", cell="default", created_ms=0)
    image = replayed(
        with_brokers(3),
        [
            msgspec.structs.replace(record, state=state),
            TopicRecord("lkc-aaaaaa_orders", A),
            _partition(A, 0, (0, 1)),
        ],
    )
    model = _model(image)
    assert model.home[0] == 0
    assert model.stays[0] == stays


def test_replicas_on_unknown_brokers_keep_their_partition_where_it_is() -> None:
    model = model_of(_brokers(), [ModelPartition(A, 0, (0, 9), 0, (0,), 8.0, 1.0, (4.0, 4.0))])
    assert list(model.holder) == [0]
    assert model.stays[0]


def _layout(loads: list[float | None], rates: list[float]) -> Layout:
    brokers = [ModelBroker(number, "default", load=load) for number, load in enumerate(loads)]
    partitions = [ModelPartition(A, number, (number,), number, (number,), rate) for number, rate in enumerate(rates)]
    return at_once(layout_of(model_of(brokers, partitions, LoadWeights(1e-9, 1e-9, 1e-9))))


def test_a_brokers_value_is_the_load_that_it_reports() -> None:
    layout = _layout([0.6, 0.3, 0.1], [6e8, 3e8, 1e8])
    assert [layout.value(LOAD, slot) for slot in range(3)] == pytest.approx([0.6, 0.3, 0.1])
    assert layout.fair(LOAD)[0] == pytest.approx(1 / 3)


def test_where_a_disk_is_unknown_replicas_alone_are_compared() -> None:
    """A broker that has just started has reported nothing: its disk is not empty for that."""
    partitions = [
        ModelPartition(A, number, (number % 3, (number + 1) % 3), number % 3, (0, 1, 2), 0.0, 0.0, (GB, GB))
        for number in range(6)
    ]
    known = [ModelBroker(number, "default", disk_size=270 * GB, disk_used=199 * GB) for number in range(3)]
    layout = at_once(layout_of(model_of(known, partitions)))
    assert [layout.value(DISK, slot) for slot in range(3)] == [199 / 270] * 3
    layout = at_once(layout_of(model_of([*known[:2], ModelBroker(2, "default")], partitions)))
    assert [layout.value(DISK, slot) for slot in range(3)] == [4 * GB] * 3


def test_an_unknown_load_is_that_of_the_replicas_at_the_speed_of_others() -> None:
    layout = _layout([0.6, None], [3e8, 2e8])
    assert layout.value(LOAD, 1) == pytest.approx(0.4)


def test_a_speed_beyond_belief_is_bounded() -> None:
    layout = _layout([0.5, 0.4, 0.9], [5e8, 4e8, 1e3])
    assert layout.value(LOAD, 2) == pytest.approx(0.9)
    assert layout.sizes[LOAD][0] / layout.sizes[LOAD][2] <= 4.0 + 1e-9
