"""Partitions that a reader names: those that are not the topic's are refused, those without anything yet are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from common.machine import MachineClock
from object_store.blocking import BlockingStore
from records.events import Event, EventsHeader, encode_events
from spark_offload.erasure.job import ErasureOptions, _all_partitions
from spark_offload.erasure.key_digests import ErasureKeys
from spark_offload.options import OptionError, parse_options
from spark_offload.reading.catalog import Catalog
from spark_offload.reading.planning import plan_batch
from spark_offload.reading.pushdown import PushedBounds
from spark_offload.reading.stream_reader import TierStreamReader
from tests.spark_offload.tier_builder import NOW, TierBuilder, plain_batches
from tiering.exports.exports import ExportKey, export_key

Chosen = Callable[..., list[int]]


def add(tier: TierBuilder, *numbers: int, topic: str = "flights", topic_id: int = 1, dropped_ms: int = 0) -> None:
    for number in numbers:
        partition = tier.partition(topic, number, topic_id=topic_id)
        partition.add(plain_batches(0, 10))
        partition.publish(dropped_ms=dropped_ms)


def export(tier: TierBuilder, partitions: int, topic_id: int = 1) -> None:
    """What the controllers tell of one topic."""
    identity = topic_id.to_bytes(16, "big").hex()
    events: list[Event] = [{"event": "topic", "name": "flights", "topic_id": identity}]
    events += [{"event": "partition", "topic_id": identity, "partition": number} for number in range(partitions)]
    header = EventsHeader(
        kind="metadata", cluster_id=tier.tier.cluster_id, incarnation=1, scope=0, position=1, created_ms=NOW
    )
    target = tier.root / export_key(tier.tier, ExportKey("metadata", 1, 0, 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(encode_events(header, events))


@pytest.fixture
def tier(tmp_path: Path) -> TierBuilder:
    """flights: partitions 0 and 3 have something in the tier."""
    built = TierBuilder(tmp_path)
    add(built, 0, 3)
    return built


def in_batch(tier: TierBuilder, **options: str) -> list[int]:
    """The partitions that a batch query reads."""
    reading = parse_options({"tier": tier.uri, "topic": "flights"} | options)
    with BlockingStore(tier.uri) as store:
        tasks = store.wait(lambda: plan_batch(store.store, reading, PushedBounds()))
    return sorted({split.partition for task in tasks for split in task})


def in_stream(tier: TierBuilder, **options: str) -> list[int]:
    """The partitions that a stream begins with."""
    reading = parse_options({"tier": tier.uri, "topic": "flights"} | options)
    reader = TierStreamReader(StructType(), reading, MachineClock())
    return sorted(int(number) for numbers in reader.initialOffset().values() for number in numbers)


@pytest.fixture(params=[in_batch, in_stream])
def chosen(request: pytest.FixtureRequest) -> Chosen:
    found: Chosen = request.param
    return found


def test_one_that_the_topic_does_not_have_is_named_beside_those_that_it_has(tier: TierBuilder, chosen: Chosen) -> None:
    export(tier, 6)
    with pytest.raises(OptionError, match=r"cluster cluster-one: topic 'flights' has no partition 9: it has 0 to 5$"):
        chosen(tier, partitions="0,9")
    with pytest.raises(OptionError, match=r"'flights' has no partitions 6-7, 12: it has 0 to 5$"):
        chosen(tier, partitions="0,4-7,12")
    with pytest.raises(OptionError, match=r"'flights' has no partition 9: it has 0 to 5$"):
        chosen(tier, partitions="9")


def test_one_of_which_nothing_was_copied_yet_is_no_mistake(tier: TierBuilder, chosen: Chosen) -> None:
    assert chosen(tier, partitions="0-2") == [0]  # 3 is there, so 1 and 2 are
    assert chosen(tier, partitions="1") == []
    export(tier, 6)
    assert chosen(tier, partitions="3-5") == [3]
    assert chosen(tier, partitions="5") == []


def test_without_an_export_what_is_above_the_tiers_highest_is_refused(tier: TierBuilder, chosen: Chosen) -> None:
    told = r"'flights' has no partition 4: the tier has 0 to 3 of it, and no export of the cluster's metadata knows"
    with pytest.raises(OptionError, match=told):
        chosen(tier, partitions="3-4")
    export(tier, 9, topic_id=2)  # of another topic
    with pytest.raises(OptionError, match=told):
        chosen(tier, partitions="3-4")


def test_each_topic_that_is_named_has_them_and_those_of_a_pattern_need_not(tier: TierBuilder, chosen: Chosen) -> None:
    add(tier, 0, topic="moods", topic_id=2)
    with pytest.raises(OptionError, match=r"topic 'moods' has no partition 3: the tier has 0 alone"):
        chosen(tier, topic="flights,moods", partitions="0,3")
    reading = parse_options({"tier": tier.uri, "topicPattern": ".*", "partitions": "3,9"})
    with BlockingStore(tier.uri) as store:
        found = store.wait(lambda: Catalog(store.store, reading).contents())
    assert [(one.path.topic, one.path.partition) for one in found] == [("flights", 3)]


def test_a_deleted_topic_says_nothing_of_the_one_that_has_its_name(tmp_path: Path, chosen: Chosen) -> None:
    tier = TierBuilder(tmp_path)
    add(tier, *range(10), dropped_ms=NOW)
    for partitions in ("9", "12"):
        with pytest.raises(OptionError, match=r"holds nothing of topic 'flights'$"):
            chosen(tier, partitions=partitions)
    add(tier, 0, 1, topic_id=2)
    for partitions in ("0,9", "9"):
        with pytest.raises(OptionError, match="'flights' has no partition 9: the tier has 0 to 1 of it"):
            chosen(tier, partitions=partitions)
    assert chosen(tier, partitions="9", topicId=f"{1:032x}") == [9]


def test_one_whose_manifest_is_damaged_is_there(tier: TierBuilder) -> None:
    path = tier.partition("flights", 3).path
    (tier.root / tier.tier.manifest_key(path, 1)).write_text("{}")
    reading = parse_options({"tier": tier.uri, "topic": "flights", "partitions": "1,3"})
    with BlockingStore(tier.uri) as store:
        catalog = Catalog(store.store, reading, passes_over_damage=True)
        assert store.wait(catalog.contents) == []
    assert [path for path, _ in catalog.damaged] == [path]
    assert in_batch(tier, partitions="1") == []


def test_a_stream_asks_once_and_takes_what_comes(tier: TierBuilder) -> None:
    export(tier, 6)
    reading = parse_options({"tier": tier.uri, "topic": "flights", "partitions": "5"})
    reader = TierStreamReader(StructType(), reading, MachineClock())
    assert reader.initialOffset() == {}
    (tier.root / export_key(tier.tier, ExportKey("metadata", 1, 0, 1))).unlink()
    assert reader.initialOffset() == {}
    add(tier, 5)
    assert reader.reportLatestOffset() == {f"flights-{1:032x}": {"5": 10}}


def test_an_erasure_needs_something_in_the_tier(tier: TierBuilder) -> None:
    keys = ErasureKeys([(1, b"k1")], bytes(16))
    options = ErasureOptions(tier=tier.uri, topics=("flights",), partitions="1", keys=keys, seed=bytes(16))
    with (
        BlockingStore(tier.uri) as store,
        pytest.raises(OptionError, match=r"holds nothing of topic 'flights' in these partitions$"),
    ):
        store.wait(lambda: _all_partitions(store.store, tier.tier, options))
