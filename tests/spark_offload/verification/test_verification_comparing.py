"""Rewritten segments beside those they replaced, keys beside an earlier run, and a ledger of acknowledged writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from records.batch import read_header
from records.builder import assemble, build_batch
from records.compression import Compression, compress
from records.record import Record, encode_record
from spark_offload.verification.checks import Check
from spark_offload.verification.comparing import KeysError, keys_file, read_keys
from spark_offload.verification.key_table import KeyTable
from spark_offload.verification.ledger import LedgerError, key_hash, read_ledger
from tests.spark_offload.verification.verified_tier import NOW, VerifiedTier, checks_of, verify_here
from tiering.bucket.segment import PRODUCER_SNAPSHOT
from tiering.jobs.proposal import Proposal, encode

Row = tuple[int, str, str | None]
"""Offset, key, value (None: a tombstone)."""

ROWS: list[Row] = [
    (0, "a", "1"), (1, "b", "1"), (2, "c", "1"), (3, "a", "2"),
    (4, "b", None), (5, "a", "3"), (6, "d", "1"), (7, "c", "2"),
    (8, "e", "1"), (9, "d", "2"), (10, "f", "1"), (11, "f", None),
]  # fmt: skip
COMPACTED = [1, 4, 5, 7]
"""Offsets of the first eight that compaction leaves, with the tombstone of b; d has a later value behind them."""


def batch(rows: Sequence[Row], base: int, end: int) -> bytes:
    """Of these rows, in the offsets [base, end)."""
    values = [(offset, key.encode(), None if value is None else value.encode()) for offset, key, value in rows]
    first, last = values[0][0], values[-1][0]
    body = b"".join(encode_record(offset - first, offset - base, key, value) for offset, key, value in values)
    header = read_header(build_batch([Record(0, NOW, b"", b"")], leader_epoch=0, compression=Compression.LZ4), 0)
    whole = assemble(
        replace(
            header,
            base_offset=base,
            last_offset_delta=end - 1 - base,
            base_timestamp=NOW + first,
            max_timestamp=NOW + last,
            count=len(values),
        ),
        compress(Compression.LZ4, body),
    )
    return bytes(whole)


class Compacted:
    """Segments of four offsets; the first two are replaced by one that holds `kept` of their records."""

    def __init__(self, root: Path, rows: Sequence[Row] = ROWS) -> None:
        self.tier = VerifiedTier(root)
        self.rows = list(rows)
        self.tier.set_config(cleanup_policy="compact")
        for base in range(0, len(rows), 4):
            self.tier.add([batch(rows[base : base + 4], base, base + 4)])
        self.tier.publish()
        self.old = self.tier.written[:2]

    def replace(self, kept: Sequence[int], changes: dict[int, Row] | None = None, **fields: Any) -> None:
        changed = changes or {}
        inputs = [one.segment.id for one in self.old]
        spare = VerifiedTier(self.tier.root / "spare")
        rows = [changed.get(offset, self.rows[offset]) for offset in kept]
        made = spare.add([batch(rows, 0, 8)], rewritten=True, uuid="c" * 32)
        made.sections[PRODUCER_SNAPSHOT] = self.old[-1].sections[PRODUCER_SNAPSHOT]
        self.tier.written[:2] = [made]
        self.tier.put_together(0)
        self.tier.version = 2
        self.tier.publish()
        values: dict[str, Any] = {
            "uuid": "d" * 32,
            "kind": "compaction",
            "topic": self.tier.topic,
            "topic_id": self.tier.topic_id.hex(),
            "partition": 0,
            "created_ms": NOW,
            "incarnation": 1,
            "log_start_offset": 0,
            "inputs": inputs,
            "outputs": [self.tier.written[0].segment],
        }
        proposal = Proposal(**values | fields)
        self.tier.write(self.tier.tier.proposal_key(proposal.uuid), encode(proposal))


@pytest.fixture
def world(tmp_path: Path) -> Compacted:
    return Compacted(tmp_path)


def test_a_right_compaction_is_clean(world: Compacted) -> None:
    world.replace(COMPACTED)
    report = verify_here(world.tier, deep=True)
    assert report.problems == [] and report.notices == []
    assert {check.name: check.checked for check in report.checks}[Check.COMPACTION] == 1
    (partition,) = report.partitions
    assert partition.rewritten == 1 and partition.bytes_before > 0 and partition.bytes_after > 0


def test_a_tombstone_may_go_when_nothing_can_lie_below_it(world: Compacted) -> None:
    world.replace([5, 7], reaches_log_start=True)
    assert verify_here(world.tier).problems == []


@pytest.mark.parametrize(
    ("kept", "changes", "words"),
    [
        pytest.param([1, 5, 7], {}, "older one", id="a tombstone is lost and an old value is back"),
        pytest.param([1, 3, 4, 7], {}, "older one", id="an old value is back"),
        pytest.param([4, 7], {}, "no later one", id="the latest value is lost"),
        pytest.param([2, 4, 5], {}, "older one", id="the latest value gave way to the first"),
        pytest.param([5, 7], {}, "older ones may lie below", id="a tombstone went too early"),
        pytest.param(COMPACTED, {5: (5, "a", "9")}, "not that of the old segments", id="a value changed"),
        pytest.param(COMPACTED, {7: (7, "x", "2")}, "not that of the old segments", id="a key changed"),
    ],
)
def test_a_wrong_compaction_is_found(world: Compacted, kept: list[int], changes: dict[int, Row], words: str) -> None:
    world.replace(kept, changes)
    report = verify_here(world.tier)
    assert checks_of(report) == {Check.COMPACTION}
    assert any(words in problem.reason for problem in report.problems)


def test_a_record_that_nobody_wrote_is_found(tmp_path: Path) -> None:
    world = Compacted(tmp_path, list(ROWS))
    world.old[1].log = batch([ROWS[4], ROWS[6], ROWS[7]], 4, 8)
    world.tier.put_together(1)
    world.tier.publish()
    world.replace(COMPACTED)
    report = verify_here(world.tier)
    assert any("old ones do not have" in problem.reason for problem in report.problems)


def test_an_erasure_may_take_whole_keys_and_nothing_else(world: Compacted) -> None:
    world.replace([1, 2, 4, 6, 7], kind="erasure")
    assert verify_here(world.tier).problems == []
    world.replace([1, 2, 4, 6, 7], {6: (6, "d", "8")}, kind="erasure")


def test_replaced_segments_that_are_gone_are_not_asked_for(world: Compacted) -> None:
    world.replace([4, 7])
    for one in world.old:
        (world.tier.root / world.tier.tier.segment_key(world.tier.path, one.segment.id)).unlink()
    assert verify_here(world.tier).problems == []


# an earlier run ----------------------------------------------------------------------------------------------


def known(world: Compacted) -> Any:
    report = verify_here(world.tier, keep_keys=True)
    return read_keys(keys_file(report.keys), "keys.parquet")


def without_old(world: Compacted) -> None:
    for one in world.old:
        (world.tier.root / world.tier.tier.segment_key(world.tier.path, one.segment.id)).unlink()


def test_keys_of_an_earlier_run_are_still_there(world: Compacted) -> None:
    before = known(world)
    (table,) = before.values()
    assert table.rows == 6
    world.replace(COMPACTED)
    without_old(world)
    report = verify_here(world.tier, known_keys=before)
    assert report.problems == [] and Check.KEYS in {check.name for check in report.checks}


@pytest.mark.parametrize(
    ("kept", "changes", "words"),
    [
        pytest.param([1, 5, 7], {}, "an older value", id="a tombstone is lost"),
        pytest.param([1, 3, 4, 7], {}, "an older value", id="an old value is back"),
        pytest.param([4, 7], {}, "is gone", id="a value is lost"),
        pytest.param(COMPACTED, {5: (5, "a", "9")}, "changed", id="a value changed"),
    ],
)
def test_keys_that_got_lost_since_an_earlier_run_are_found(
    world: Compacted, kept: list[int], changes: dict[int, Row], words: str
) -> None:
    before = known(world)
    world.replace(kept, changes)
    without_old(world)
    report = verify_here(world.tier, known_keys=before)
    assert checks_of(report) == {Check.KEYS}
    assert words in report.problems[0].reason


def test_a_file_that_holds_no_keys_is_refused() -> None:
    with pytest.raises(KeysError, match="earlier"):
        read_keys(b"PAR1 nothing", "earlier")


# a ledger ----------------------------------------------------------------------------------------------------


def digits(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def ledger_csv(rows: Sequence[Row], topic: str = "flights") -> bytes:
    lines = [f"{topic},0,{offset},{digits(key)},{str(value is None).lower()}" for offset, key, value in rows]
    return "\n".join(["topic,partition,offset,key_hash,tombstone", *lines]).encode()


def test_the_hash_is_what_the_page_says() -> None:
    assert f"{key_hash(b'N14228'):016x}" == digits("N14228")
    assert key_hash(None) == 0


@given(st.lists(st.integers(1, 2**64 - 1) | st.none(), min_size=1))
def test_hashes_of_a_ledger_are_numbers(hashes: list[int | None]) -> None:
    texts = ["" if one is None else f"{one:016x}" if one % 2 else f"{one:016X}" for one in hashes]
    lines = [f"t,0,{offset},{text}" for offset, text in enumerate(texts)]
    ledger = read_ledger("\n".join(["topic,partition,offset,key_hash", *lines]).encode(), "ledger")
    assert ledger.of("t", 0).key_hash.tolist() == [one or 0 for one in hashes]


@pytest.mark.parametrize("text", ["0" * 15, "0" * 17, "0x" + "0" * 14, "g" * 16, "+" + "1" * 15, "0" * 8, "ä" * 8])
def test_what_is_no_hash_is_refused(text: str) -> None:
    for rows in ([text], ["0" * 16, text, "f" * 16]):
        lines = [f"t,0,{offset},{one}" for offset, one in enumerate(rows)]
        with pytest.raises(LedgerError, match="16 hex digits"):
            read_ledger("\n".join(["topic,partition,offset,key_hash", *lines]).encode(), "ledger")


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["0a", "0b", "0c"]), st.integers(0, 3)),
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.booleans()), min_size=1, unique_by=lambda row: row[0]),
    )
)
def test_keys_come_back_from_their_file(places: dict[tuple[str, int], list[tuple[int, bool]]]) -> None:
    tables = {
        place: KeyTable(
            np.array([row[0] for row in sorted(rows)], np.uint64),
            np.arange(len(rows)),
            np.arange(len(rows)) * 7,
            np.array([row[1] for row in sorted(rows)]),
        )
        for place, rows in places.items()
    }
    found = read_keys(keys_file(tables), "keys")
    assert {place: [column.tolist() for column in table] for place, table in found.items()} == {
        place: [column.tolist() for column in table] for place, table in tables.items()
    }


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("split_bytes", [1 << 20, 100])
def test_all_acknowledged_writes_are_there(world: Compacted, deep: bool, split_bytes: int) -> None:
    beyond: list[Row] = [*ROWS, (12, "g", "1"), (13, "g", "2")]
    ledger = read_ledger(ledger_csv(beyond), "ledger")
    report = verify_here(world.tier, ledger=ledger, deep=deep, split_bytes=split_bytes)
    assert report.problems == [] and report.ledger is not None
    assert (report.ledger.writes, report.ledger.present, report.ledger.not_tiered) == (14, 12, 2)


def test_what_compaction_took_is_explained(world: Compacted) -> None:
    world.replace(COMPACTED)
    report = verify_here(world.tier, ledger=read_ledger(ledger_csv(ROWS), "ledger"))
    assert report.problems == [] and report.ledger is not None
    assert (report.ledger.present, report.ledger.explained, report.ledger.lost) == (8, 4, 0)


def test_an_acknowledged_write_that_is_lost_is_found(world: Compacted) -> None:
    world.replace([1, 4, 7])
    without_old(world)
    report = verify_here(world.tier, ledger=read_ledger(ledger_csv(ROWS), "ledger"))
    assert checks_of(report) == {Check.LEDGER} and report.ledger is not None
    assert report.ledger.lost == 3  # all values of a


def test_a_lost_write_of_a_topic_that_is_not_compacted_is_found(tmp_path: Path) -> None:
    world = Compacted(tmp_path)
    world.tier.set_config(cleanup_policy="delete")
    world.tier.file(1).unlink()
    report = verify_here(world.tier, ledger=read_ledger(ledger_csv(ROWS), "ledger"))
    assert Check.LEDGER in checks_of(report) and report.ledger is not None and report.ledger.lost == 4


def test_a_write_whose_offset_holds_another_key_is_found(world: Compacted) -> None:
    rows = [*ROWS[:5], (5, "z", "3")]
    report = verify_here(world.tier, ledger=read_ledger(ledger_csv(rows), "ledger"))
    assert checks_of(report) == {Check.LEDGER} and report.problems[0].offset == 5


def test_a_ledger_in_parquet_says_the_same(world: Compacted) -> None:
    table = pa.table(
        {
            "topic": ["flights"] * 12,
            "partition": [0] * 12,
            "offset": list(range(12)),
            "key_hash": [digits(key) for _, key, _ in ROWS],
        }
    )
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    report = verify_here(world.tier, ledger=read_ledger(sink.getvalue().to_pybytes(), "ledger"))
    assert report.problems == [] and report.ledger is not None and report.ledger.present == 12


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"PAR1", b"topic,partition,offset,key_hash\nx,0,zero,00\n"])
def test_a_file_that_is_no_ledger_is_refused(data: bytes) -> None:
    with pytest.raises(LedgerError, match="the file"):
        read_ledger(data, "the file")


def test_proposals_that_cannot_be_read_are_told(world: Compacted) -> None:
    world.replace(COMPACTED)
    world.tier.write(world.tier.tier.proposal_key("e" * 32), msgspec.json.encode({"format": 9}))
    report = verify_here(world.tier)
    assert report.problems == [] and [notice.what for notice in report.notices] == [Check.COMPACTION]
