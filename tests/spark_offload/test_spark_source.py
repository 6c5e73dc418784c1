"""The data source inside a real Spark: what a query says, rows answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from object_store.blocking import BlockingStore
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from storage.indexes.transaction_index import AbortedTransaction
from tests.spark_offload.tier_builder import (
    NOW,
    BuiltPartition,
    TierBuilder,
    batch,
    marker,
    plain_batches,
    transactional,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> TierBuilder:
    """flights: two partitions; moods: one whose records have headers; payments: transactions."""
    built = TierBuilder(tmp_path_factory.mktemp("tier"))
    first, second = built.partition("flights", 0), built.partition("flights", 1)
    first.add(plain_batches(0, 600, codec=Compression.LZ4))
    first.add(plain_batches(600, 400))
    second.add(plain_batches(0, 50, codec=Compression.ZSTD))
    moods = built.partition("moods", topic_id=2)
    moods.add([batch([Record(0, NOW, b"a", None, (("h", b"1"), ("i", None))), Record(0, NOW, None, b"")], 0)])
    payments = built.partition("payments", topic_id=3)
    lost = [transactional(1, 0, [b"x"] * 3), marker(MarkerKind.ABORT, 1, 3), transactional(2, 4, [b"y"] * 2)]
    payments.add(
        [*lost, marker(MarkerKind.COMMIT, 2, 6), transactional(1, 7, [b"z"])],
        aborted=[AbortedTransaction(1, 0, 3, 0)],
        open_transactions=[(1, 7)],
    )
    for partition in (first, second, moods, payments):
        partition.publish()
    return built


@pytest.fixture
def read(spark: SparkSession, tier: TierBuilder) -> Read:
    def load(schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("tidelog").options(**{"tier": tier.uri, "topic": "flights"} | options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_every_record_is_a_row_like_those_of_sparks_kafka_source(read: Read) -> None:
    frame = read()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = frame.collect()
    assert len(rows) == 1_050
    row = next(one for one in rows if one["partition"] == 0 and one["offset"] == 601)
    assert row.asDict() == {
        "key": b"k6",
        "value": b"v601",
        "topic": "flights",
        "partition": 0,
        "offset": 601,
        "timestamp": datetime.fromtimestamp((NOW + 601) / 1_000, UTC).replace(tzinfo=None),
        "timestampType": 0,
    }
    assert frame.groupBy("partition").count().orderBy("partition").collect() == [(0, 1_000), (1, 50)]


def test_a_narrower_schema(read: Read) -> None:
    frame = read("offset bigint, value binary", partitions="1")
    assert [(row[0], row[1]) for row in frame.orderBy("offset").take(2)] == [(0, b"v0"), (1, b"v1")]
    assert read("partition int").count() == 1_050


def test_small_splits_and_chunks_give_the_same_rows(read: Read) -> None:
    frame = read(splitBytes=1_024, chunkBytes=1_024, partitions="0")
    assert frame.rdd.getNumPartitions() > 6
    assert offsets(frame) == list(range(1_000))


def test_bounds_by_offset_and_by_timestamp(read: Read) -> None:
    chosen = {"startingOffsets": '{"flights": {"0": 590, "1": -1}}', "endingOffsets": '{"flights": {"0": 610}}'}
    assert offsets(read(**chosen)) == list(range(590, 610))
    assert offsets(read(startingTimestamp=NOW + 45, endingTimestamp=NOW + 47)) == [45, 45, 46, 46]
    assert read(startingOffsets="latest").count() == 0


def test_headers_on_request(read: Read) -> None:
    assert "headers" not in read(topic="moods").columns
    first, second = read(topic="moods", includeHeaders="true").orderBy("offset").collect()
    assert [(pair["key"], pair["value"]) for pair in first["headers"]] == [("h", b"1"), ("i", None)]
    assert (first["value"], second["key"], second["value"], second["headers"]) == (None, None, b"", None)


def test_read_committed_leaves_out_aborted_and_undecided_records(read: Read) -> None:
    assert offsets(read(topic="payments")) == [0, 1, 2, 4, 5, 7]
    assert offsets(read(topic="payments", isolation="read_committed")) == [4, 5]


def test_several_topics_and_a_pattern(read: Read) -> None:
    counts = {"flights": 1_050, "moods": 2}
    for options in ({"topic": "flights,moods"}, {"topic": "", "topicPattern": "flights|moo.*"}):
        rows = read(**options).groupBy("topic").count().collect()
        assert {row["topic"]: row["count"] for row in rows} == counts


def test_filters_leave_out_objects(read: Read) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415

    frame = read(pushdown="true").where("partition = 0 and offset >= 700 and offset < 705")
    assert offsets(frame) == [700, 701, 702, 703, 704]
    assert frame.rdd.getNumPartitions() == 1
    late = read(pushdown="true").where(f.col("timestamp") >= f.timestamp_millis(f.lit(NOW + 990)))
    assert offsets(late) == list(range(990, 1_000))
    assert late.rdd.getNumPartitions() == 1
    assert read(pushdown="true").where("partition in (1, 7) and offset in (3, 48)").count() == 2
    assert read(pushdown="true").where("topic = 'other'").count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "flight"}, "holds nothing of topic 'flight'"),
        ({"partitions": "0,9"}, "topic 'flights' has no partition 9: the tier has 0 to 1"),
        ({"topics": "x"}, "unknown option 'topics'"),
        ({"clusterId": "other"}, "cluster other, holds nothing"),
        ({"startingOffsets": '{"flights": {"0": 5000, "1": 0}}'}, "offset 5000 of flights-0 is not in the tier"),
        ({"startingOffsets": '{"moods": {"0": 0}}'}, "moods-0 has an offset in the options"),
        ({"schema": "key string"}, "no column key string; the columns are key binary,"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(read: Read, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words.replace("(", r"\(")):
        read(**options).count()


def test_lost_offsets_may_be_accepted(read: Read) -> None:
    chosen = {"startingOffsets": '{"flights": {"0": 5000, "1": 40}}', "failOnDataLoss": "false"}
    assert offsets(read(**chosen)) == list(range(40, 50))


def test_a_damaged_object_fails_the_query_and_is_named(read: Read, tmp_path: Path) -> None:
    built = TierBuilder(tmp_path)
    partition = built.partition("flights")
    segment = partition.add(plain_batches(0, 100))
    partition.publish()
    data = bytearray(partition.file_of(segment).read_bytes())
    data[segment.log_bytes - 3] ^= 1
    partition.file_of(segment).write_bytes(bytes(data))
    with pytest.raises(Exception, match=r"wrong CRC of the batch at byte") as caught:
        read(tier=built.uri).count()
    assert partition.file_of(segment).name in str(caught.value)


def test_names_that_came_back_and_clusters_beside_each_other(read: Read, tmp_path: Path) -> None:
    built, other = TierBuilder(tmp_path), TierBuilder(tmp_path, "cluster-two")
    old, new = built.partition("flights", topic_id=8), built.partition("flights", topic_id=9)
    for number, partition in enumerate((old, new, other.partition("flights", topic_id=7))):
        partition.add(plain_batches(0, 10 + number))
        partition.publish()
    with pytest.raises(Exception, match="choose one with clusterId"):
        read(tier=built.uri).count()
    with pytest.raises(Exception, match="choose a topicId"):
        read(tier=built.uri, clusterId="cluster-one").count()
    assert read(tier=built.uri, clusterId="cluster-two").count() == 12
    assert read(tier=built.uri, clusterId="cluster-one", topicId=f"{8:032x}").count() == 10
    old.publish(dropped_ms=NOW)
    assert read(tier=built.uri, clusterId="cluster-one").count() == 11
    assert read(tier=built.uri, clusterId="cluster-one", topicId=f"{8:032x}").count() == 10


def test_a_bucket_is_read_like_a_directory(
    spark: SparkSession, read: Read, tier: TierBuilder, moto_endpoint: str
) -> None:
    """After the fixture `spark`, which sets credentials for this process too."""
    from aiobotocore.session import get_session  # noqa: PLC0415  heavy

    async def create_bucket() -> None:
        async with get_session().create_client("s3", endpoint_url=moto_endpoint, region_name="us-east-1") as client:
            await client.create_bucket(Bucket="spark")

    uri = f"s3://spark/some/prefix?endpoint={moto_endpoint}&region=us-east-1"
    with BlockingStore(uri) as store:
        store.wait(create_bucket)
        for path in sorted(one for one in tier.root.rglob("*") if one.is_file()):
            store.put(str(path.relative_to(tier.root)), path.read_bytes())
    assert offsets(read(tier=uri, partitions="0", splitBytes=2_048, chunkBytes=1_024)) == list(range(1_000))
    assert offsets(read(tier=uri, topic="payments", isolation="read_committed")) == [4, 5]


# streams ---------------------------------------------------------------------------------------------------


class Stream:
    """A query that runs when told, until it has read what is there, and goes on from its checkpoint."""

    def __init__(self, spark: SparkSession, tier: TierBuilder, work: Path) -> None:
        self.spark, self.tier, self.work = spark, tier, work
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, **options: Any) -> list[list[tuple[int, int]]]:
        """(partition, offset) of each micro-batch of this run, in order."""
        self.batches = []
        reader = self.spark.readStream.format("tidelog").options(**{"tier": self.tier.uri, "topic": "t"} | options)
        query = (
            reader.schema("partition int, offset bigint")
            .load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self.work / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert not query.isActive
        return self.batches

    def rows(self, **options: Any) -> list[tuple[int, int]]:
        """As `run`, without the borders of micro-batches."""
        return [row for rows in self.run(**options) for row in rows]

    def _keep(self, frame: DataFrame, _number: int) -> None:
        self.batches.append(sorted((row[0], row[1]) for row in frame.collect()))


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> tuple[Stream, BuiltPartition]:
    built = TierBuilder(tmp_path / "tier")
    partition = built.partition("t")
    partition.add(plain_batches(0, 25))
    partition.publish()
    return Stream(spark, built, tmp_path), partition


def rows_of(partition: int, *spans: tuple[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for first, end in spans for offset in range(first, end)]


def test_a_stream_goes_on_where_its_checkpoint_ends(stream: tuple[Stream, BuiltPartition]) -> None:
    query, partition = stream
    assert query.run(maxOffsetsPerTrigger=10) == [rows_of(0, (0, 10)), rows_of(0, (10, 20)), rows_of(0, (20, 25))]
    partition.add(plain_batches(25, 5))
    partition.publish()
    other = query.tier.partition("t", 1)
    other.add(plain_batches(0, 3))
    other.publish()
    assert query.run() == [rows_of(0, (25, 30)) + rows_of(1, (0, 3))]
    assert query.rows() == []


def test_a_stream_says_that_records_are_gone(stream: tuple[Stream, BuiltPartition]) -> None:
    query, partition = stream
    assert query.rows(startingOffsets="latest") == []
    partition.add(plain_batches(25, 5))
    partition.add(plain_batches(30, 5))
    partition.log_start, partition.segments = 30, partition.segments[2:]
    partition.publish()
    with pytest.raises(Exception, match="offset 25 of t-0 is not in the tier, which holds 30 to 35"):
        query.run()
    assert query.rows(failOnDataLoss="false") == rows_of(0, (30, 35))


def test_a_stream_goes_on_in_another_topic_of_its_name_only_when_told_to(
    stream: tuple[Stream, BuiltPartition],
) -> None:
    query, partition = stream
    query.run()
    partition.publish(dropped_ms=NOW)
    again = query.tier.partition("t", topic_id=2)
    again.add(plain_batches(0, 40))
    again.publish()
    with pytest.raises(Exception, match="t-0 is no longer in the tier, another topic has its name now"):
        query.run()
    assert query.rows(failOnDataLoss="false") == rows_of(0, (0, 40))
