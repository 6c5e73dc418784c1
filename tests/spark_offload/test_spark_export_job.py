"""Exports without Spark's processes, whose tasks run here: what is in the table is what is in the topics, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from records.control import MarkerKind
from spark_offload.export.day_files import FileTarget
from spark_offload.export.iceberg_table import IcebergTable, open_catalog
from spark_offload.export.job import open_table
from spark_offload.export.options import ExportOptions
from spark_offload.export.parquet_table import committed_files
from spark_offload.export.tables import Addition, CommitConflict, ExportTable, TableState
from storage.indexes.transaction_index import AbortedTransaction
from tests.spark_offload.export_rows import (
    KINDS,
    data_files,
    export,
    make_segments,
    offsets_in,
    options_for,
    random_partitions,
    rows_of,
    table_of,
)
from tests.spark_offload.tier_builder import TierBuilder, marker, plain_batches, transactional
from tiering.bucket.segment import PRODUCER_SNAPSHOT, TRANSACTION_INDEX


class Killed(BaseException):
    """No code of the product catches this: what it leaves behind is what a killed process leaves."""


class Between:
    """A table of which some steps are done by the test: each gets the table's own one and its arguments."""

    def __init__(self, table: ExportTable, **steps: Callable[..., Any]) -> None:
        self._table, self._steps = table, steps
        self.name = table.name

    def _do(self, step: str, own: Callable[..., Any], *arguments: Any) -> Any:
        return self._steps[step](own, *arguments) if step in self._steps else own(*arguments)

    def prepare(self, schema: pa.Schema) -> None:
        self._do("prepare", self._table.prepare, schema)

    def state(self) -> TableState:
        return cast(TableState, self._do("state", self._table.state))

    def target(self) -> FileTarget:
        return cast(FileTarget, self._do("target", self._table.target))

    def commit(self, state: TableState, addition: Addition) -> str:
        return str(self._do("commit", self._table.commit, state, addition))

    def delete(self, paths: Sequence[str]) -> None:
        self._table.delete(paths)

    def sweep(self, before_ms: int) -> int:
        return self._table.sweep(before_ms)

    def close(self) -> None:
        self._table.close()


@pytest.fixture
def tier(tmp_path: Path) -> TierBuilder:
    return TierBuilder(tmp_path / "tier")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_random_topics_run_after_run(tier: TierBuilder, kind: str, seed: int) -> None:
    partitions = random_partitions(tier, "flights", 3, seed) + random_partitions(tier, "others", 1, seed)
    options = options_for(
        tier, kind, topics=("flights", "others"), table="a.b" if kind == "iceberg" else "", include_headers=True
    )
    rows = 0
    for turn in range(3):
        for partition in partitions if turn != 1 else partitions[:1]:
            partition.grow()
        report = export(options)
        assert not report.failed
        rows += report.rows
        expected = [row for partition in partitions for row in partition.rows]
        assert rows_of(table_of(options)) == expected
        assert rows == len(expected)
    again = export(options)
    assert (again.version, again.rows, again.files, again.lines()) == (
        "",
        0,
        0,
        [f"{again.table}: nothing new to export"],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_transaction_waits_for_its_end(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    partition.add([*plain_batches(0, 5), transactional(7, 5, [b"a", b"b"])], open_transactions=[(7, 5)])
    partition.publish()
    options = options_for(tier, kind)
    export(options)
    assert offsets_in(options) == [0, 1, 2, 3, 4]
    partition.add([marker(MarkerKind.COMMIT, 7, 7), *plain_batches(8, 2)])
    partition.publish()
    export(options)
    assert offsets_in(options) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


POINTS = ["prepare", "state", "target", "commit", "committed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_leaves_a_correct_table(tier: TierBuilder, kind: str, point: str) -> None:
    make_segments(tier, 2)
    options = options_for(tier, kind)

    def killed(own: Callable[..., Any], *arguments: Any) -> Any:
        if point in ("prepare", "committed"):
            own(*arguments)
        raise Killed

    with pytest.raises(Killed):
        export(options, Between(open_table(options), **{"commit" if point == "committed" else point: killed}))
    assert offsets_in(options) == (list(range(100)) if point == "committed" else [])
    assert not export(options).failed
    assert offsets_in(options) == list(range(100))


class KilledTarget:
    """Takes `left` files more."""

    def __init__(self, target: FileTarget, left: int) -> None:
        self._target, self._left = target, left

    def put(self, name: str, data: pa.Buffer) -> str:
        if not self._left:
            raise Killed
        self._left -= 1
        return self._target.put(name, data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_run_that_is_killed_between_files(tier: TierBuilder, kind: str, written: int) -> None:
    """Its files stay until they are old, and are never part of the table."""
    make_segments(tier, 4)
    options = options_for(tier, kind, task_bytes=1024)
    with pytest.raises(Killed):
        export(options, Between(open_table(options), target=lambda own: KilledTarget(own(), written)))
    folder = tier.root.parent / kind
    left = data_files(folder)
    assert len(left) == written
    assert export(options).swept == 0
    assert offsets_in(options) == list(range(200))
    for path in left:
        os.utime(path, (0, 0))
    everything = len(data_files(folder))
    assert export(options).swept == written
    assert len(data_files(folder)) == everything - written
    for path in data_files(folder):
        os.utime(path, (0, 0))
    assert export(options).swept == 0
    assert offsets_in(options) == list(range(200))


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_runs_at_a_time_one_loses(tier: TierBuilder, kind: str) -> None:
    make_segments(tier, 2)
    options = options_for(tier, kind)
    report = export(options, beaten_by(options, open_table(options)))
    assert [problem.what for problem in report.problems] == ["beaten"]
    assert (report.failed, report.version) == (True, "")
    assert offsets_in(options) == list(range(100))
    assert len(data_files(tier.root.parent / kind)) == len(table_files(options))


def beaten_by(other: ExportOptions, table: ExportTable) -> Between:
    """A table into which another run exports just before the first commit."""
    others = iter([other])

    def commit(own: Callable[..., str], state: TableState, addition: Addition) -> str:
        for options in others:
            assert not export(options).failed
        return own(state, addition)

    return Between(table, commit=commit)


def table_files(options: ExportOptions) -> list[str]:
    if options.to == "parquet":
        return [file.path for file in committed_files(options.output)]
    catalog = open_catalog(options)
    try:
        return [str(path) for path in catalog.load_table(options.table_name).inspect.files()["file_path"].to_pylist()]
    finally:
        catalog.close()


class RacedCatalog:
    """`race` is run behind the look at a table of that number."""

    def __init__(self, catalog: Catalog, look: int, race: Callable[[], None]) -> None:
        self._catalog, self._race = catalog, race
        self.looks, self._raced = 0, look

    def load_table(self, identifier: tuple[str, ...]) -> Table:
        found = self._catalog.load_table(identifier)
        self.looks += 1
        if self.looks == self._raced:
            self._race()
        return found

    def close(self) -> None:
        self._catalog.close()


def test_pyiceberg_does_not_put_a_beaten_commit_on_top(tier: TierBuilder) -> None:
    """The other run commits after this one has looked at the table: only the catalog can tell."""
    make_segments(tier, 2)
    options = options_for(tier, "iceberg")
    export(options)  # the table is there already
    partition = tier.partition("flights")
    for at in range(3):
        partition.add(plain_batches(at * 50, 50))
    partition.versions = 1
    partition.publish()

    def race() -> None:
        assert not export(options).failed

    catalog: Any = RacedCatalog(open_catalog(options), 4, race)  # prepare, state, target, commit
    report = export(options, IcebergTable(options.table_name, catalog))
    assert catalog.looks > 4
    assert [problem.what for problem in report.problems] == ["beaten"]
    assert offsets_in(options) == list(range(150))


@pytest.mark.parametrize("kind", KINDS)
def test_runs_over_other_partitions_both_commit(tier: TierBuilder, kind: str) -> None:
    make_segments(tier, 1, partitions=2)
    first, second = (options_for(tier, kind, partitions=text) for text in "01")
    assert not export(first, beaten_by(second, open_table(first))).failed
    assert offsets_in(first, 0) == offsets_in(first, 1) == list(range(50))
    assert export(options_for(tier, kind)).rows == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_whose_answer_is_lost_is_found(tier: TierBuilder, kind: str) -> None:
    make_segments(tier, 1)
    options = options_for(tier, kind)

    def unheard(own: Callable[..., str], state: TableState, addition: Addition) -> str:
        own(state, addition)
        raise CommitConflict("the answer was lost")

    report = export(options, Between(open_table(options), commit=unheard))
    assert not report.failed
    assert report.version
    assert offsets_in(options) == list(range(50))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_takes_too_long_does_not_commit(tier: TierBuilder, kind: str) -> None:
    class SlowClock:
        now = 1_800_000_000_000

        def wall_ms(self) -> int:
            self.now += 3_600_000
            return self.now

        def monotonic(self) -> float:
            return 0.0

    make_segments(tier, 1)
    options = options_for(tier, kind, orphan_hours=2)
    report = export(options, clock=SlowClock())
    assert [problem.what for problem in report.problems] == ["late"]
    assert data_files(tier.root.parent / kind) == []
    assert not export(options).failed
    assert offsets_in(options) == list(range(50))


def break_object(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:100])
    else:
        data[len(plain_batches(50, 10)[0]) * 2 + 70] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_what_cannot_be_read_comes_with_a_later_run(tier: TierBuilder, kind: str, how: str) -> None:
    partition = tier.partition("flights")
    for at in range(4):
        partition.add(plain_batches(at * 50, 50))
    partition.publish()
    make_other = tier.partition("flights", 1)
    make_other.add(plain_batches(0, 50))
    make_other.publish()
    broken = partition.file_of(partition.segments[1])
    sound = broken.read_bytes()
    break_object(broken, how)
    options = options_for(tier, kind)
    for _ in range(2):
        report = export(options)
        assert report.failed
        (problem,) = report.problems
        assert problem.key == tier.tier.segment_key(partition.path, partition.segments[1].id)
        assert 50 <= problem.offset < 100
        assert offsets_in(options, 1) == list(range(50))
        there = offsets_in(options)
        assert [offset for offset in there if not 50 <= offset < 100] == [*range(50), *range(100, 200)]
    broken.write_bytes(sound)
    assert not export(options).failed
    assert offsets_in(options) == list(range(200))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_segments_at_the_end_that_are_lost_hold_back_themselves_alone(tier: TierBuilder, kind: str, lost: int) -> None:
    make_segments(tier, 3, partitions=2)
    partition = tier.partition("flights", 0)
    segments = sorted((tier.root / tier.tier.partition_prefix(partition.path)).glob("*.segment"))
    sound = {path: path.read_bytes() for path in segments[-lost:]}
    for path in sound:
        path.unlink()
    options = options_for(tier, kind)
    report = export(options)
    assert {(problem.what, problem.partition, problem.key) for problem in report.problems} == {
        ("unreadable", 0, str(path.relative_to(tier.root))) for path in sound
    }
    assert report.partitions[0].missed == [(150 - 50 * lost, 150)]
    assert (offsets_in(options, 0), offsets_in(options, 1)) == (list(range(150 - 50 * lost)), list(range(150)))
    for path, data in sound.items():
        path.write_bytes(data)
    assert not export(options).failed
    assert offsets_in(options, 0) == list(range(150))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["snapshot", "index", "object"])
@pytest.mark.parametrize("at", [1, 2])
def test_what_a_damaged_segment_would_decide_waits(tier: TierBuilder, kind: str, damage: str, at: int) -> None:
    """Producer 7 aborts in the damaged segment what it began at 5, producer 8 in the one behind it what began at 14."""
    partition = tier.partition("flights")
    partition.add([*plain_batches(0, 5), transactional(7, 5, [b"a"]), *plain_batches(6, 4)], open_transactions=[(7, 5)])
    partition.add(
        [*plain_batches(10, 3), marker(MarkerKind.ABORT, 7, 13), transactional(8, 14, [b"b"]), *plain_batches(15, 5)],
        aborted=[AbortedTransaction(7, 5, 13, 5)],
        open_transactions=[(8, 14)],
    )
    partition.add([marker(MarkerKind.ABORT, 8, 20), *plain_batches(21, 9)], aborted=[AbortedTransaction(8, 14, 20, 14)])
    partition.publish()
    segment = partition.segments[at]
    file = partition.file_of(segment)
    sound = file.read_bytes()
    if damage == "object":
        file.unlink()
    else:
        broken = bytearray(sound)
        name = PRODUCER_SNAPSHOT if damage == "snapshot" else TRANSACTION_INDEX
        broken[segment.sections[name].position + 3] ^= 1
        file.write_bytes(broken)
    everything = [*range(5), *range(6, 13), *range(15, 20), *range(21, 30)]
    held = {1: range(5, 20), 2: range(14, 30)}[at] if (damage, at) != ("snapshot", 1) else range(0)
    options = options_for(tier, kind)
    report = export(options)
    assert offsets_in(options) == [offset for offset in everything if offset not in held]
    assert report.failed == bool(held)
    if held:
        (problem,) = report.problems
        assert problem.key == tier.tier.segment_key(partition.path, segment.id)
        assert report.partitions[0].missed == [(held.start, held.stop)]
    file.write_bytes(sound)
    assert not export(options).failed
    assert offsets_in(options) == everything


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_cannot_be_read_holds_back_its_partition_alone(tier: TierBuilder, kind: str) -> None:
    make_segments(tier, 2, partitions=2)
    path = tier.partition("flights", 0).path
    manifest = tier.root / tier.tier.manifest_key(path, 1)
    manifest.write_bytes(manifest.read_bytes()[:40])
    options = options_for(tier, kind)
    report = export(options)
    assert [(problem.what, problem.partition) for problem in report.problems] == [("damaged", 0)]
    assert (offsets_in(options, 0), offsets_in(options, 1)) == ([], list(range(100)))


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_after_an_export_changes_nothing_and_holes_are_passed(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    partition.add(plain_batches(0, 50))
    partition.publish()
    options = options_for(tier, kind)
    export(options)
    partition.segments.clear()
    partition.add([*plain_batches(20, 10), *plain_batches(60, 5), *plain_batches(90, 5)])
    partition.publish()
    export(options)
    assert offsets_in(options) == [*range(50), *range(60, 65), *range(90, 95)]


@pytest.mark.parametrize("kind", KINDS)
def test_segments_that_no_manifest_names_yet_come_later(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    for at in range(3):
        partition.add(plain_batches(at * 50, 50))
    whole = list(partition.segments)
    del partition.segments[1]
    partition.publish()
    options = options_for(tier, kind)
    export(options)
    assert offsets_in(options) == [*range(50), *range(100, 150)]
    partition.segments = whole
    partition.publish()
    export(options)
    assert offsets_in(options) == list(range(150))


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_gone_are_told(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    partition.add(plain_batches(0, 50))
    partition.publish()
    options = options_for(tier, kind)
    export(options)
    partition.add(plain_batches(50, 50))
    partition.add(plain_batches(100, 50))
    partition.segments = partition.segments[2:]
    partition.log_start = 100
    partition.publish()
    report = export(options)
    assert not report.failed
    assert report.partitions[0].gone == [(50, 100)]
    assert "gone before they were exported: offsets 50 to 99" in "\n".join(report.lines())
    assert offsets_in(options) == [*range(50), *range(100, 150)]
