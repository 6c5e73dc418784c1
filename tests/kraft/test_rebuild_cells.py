"""A cluster that is rebuilt from its object store: what is a tenant's comes to lie in the tenant's cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraft.image.delta import replayed
from kraft.rebuilding.rebuild import NamedBroker, TieredPartition, TieredTopic
from kraft.records import PartitionRecord, TenantRecord, TopicRecord
from tests.kraft.test_metadata_export import LOST, old_cluster, rebuilt


@pytest.mark.parametrize(("moves_to", "home"), [(None, (0, 1, 2)), ("b", (3, 4, 5))])
def test_topics_of_a_tenant_are_placed_in_its_cell(moves_to: str | None, home: tuple[int, ...]) -> None:
    """Also where its old replicas' brokers, by their ids, are in the other; an operator's topics may lie anywhere."""
    name, of_tenant = "lkc-aaaaaa_flights", bytes([7] * 16)
    tenant = TenantRecord("lkc-aaaaaa", "demo", "a", 0, target_cell=moves_to)
    image = replayed(
        old_cluster(),
        [
            tenant,
            TopicRecord(name, of_tenant),
            *(PartitionRecord(of_tenant, index, (2, 3), (2, 3), 2) for index in range(6)),
        ],
    )
    brokers = [NamedBroker(broker, f"rack-{broker % 3}", "ab"[broker // 3]) for broker in range(6)]
    lost = TieredTopic("lkc-aaaaaa_lost", LOST, {0: TieredPartition(0, 50, 9)})
    rebuild = rebuilt(image, [lost], brokers)
    for topic in (name, lost.name):
        replicas = [p.replicas for p in rebuild.image.topics.by_name[topic].partitions.values()]
        assert {one for some in replicas for one in some} <= set(home)
        assert {len(some) for some in replicas} == {2 if topic == name else 3}
    assert rebuild.image.topics.by_name["plain"].partitions[0].replicas == (0, 1)
    assert not [note for note in rebuild.notes if "cell" in note]

    elsewhere = rebuilt(image, [lost], [replace(broker, cell="c") for broker in brokers])
    cell = moves_to or "a"
    assert [note for note in elsewhere.notes if f"cell {cell} has no broker: 2 topics" in note]
    assert elsewhere.image.topics.by_name[name].partitions[0].replicas == (2, 3)
