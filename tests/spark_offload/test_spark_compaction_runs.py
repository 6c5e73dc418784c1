"""Which segments a compaction rewrites, and which of them together."""

from __future__ import annotations

import numpy as np

from spark_offload.compaction.partition_task import dirty_ratio, reaches_back
from spark_offload.compaction.runs import Run, closes_before, forecast, plan_runs
from spark_offload.compaction.survey import SegmentNotes
from spark_offload.compaction.transactions import MarkerFate, MarkerNotes
from tiering.bucket.segment import SegmentState, TieredSegment

RECORDS, BIG = 100, 10_000


def segment(number: int, log_bytes: int = BIG, *, rewritten: bool = False) -> TieredSegment:
    return TieredSegment(
        uuid=f"{number:032x}",
        base_offset=number * RECORDS,
        end_offset=(number + 1) * RECORDS,
        max_timestamp=0,
        log_bytes=log_bytes,
        epochs=[(0, 0)],
        state=SegmentState.COPY_FINISHED,
        broker_id=0,
        leader_epoch=0,
        changed_ms=0,
        rewritten=rewritten,
    )


def notes(
    number: int,
    kept: int = RECORDS,
    *,
    expired: int = 0,
    fresh: int = 0,
    log_bytes: int = BIG,
    marker: MarkerFate | None = None,
) -> SegmentNotes:
    """Of one segment, whose first records stay; of these the first ones are deletes."""

    def bits(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
        return np.packbits(np.arange(RECORDS) < count) if count else None

    return SegmentNotes(
        segment(number, log_bytes),
        RECORDS,
        latest=bits(kept),
        expired=bits(expired),
        fresh=bits(fresh),
        markers=MarkerNotes({number * RECORDS: marker} if marker else {}),
    )


def spans(runs: list[Run]) -> list[tuple[int, int, bool]]:
    return [
        (
            run.forecasts[0].segment.base_offset // RECORDS,
            run.forecasts[-1].segment.end_offset // RECORDS,
            run.deletes_go,
        )
        for run in runs
    ]


def test_what_would_not_change_is_in_no_run() -> None:
    found = [notes(0), notes(1, 40), notes(2), notes(3), notes(4, 90), notes(5, 99)]
    assert spans(plan_runs(found, BIG, deletes_go=True)) == [(1, 2, False), (4, 6, False)]
    assert plan_runs([notes(0), notes(1)], BIG, deletes_go=True) == []


def test_thin_neighbours_are_brought_together() -> None:
    thin = BIG // 3
    found = [notes(0), notes(1, log_bytes=thin), notes(2, log_bytes=thin), notes(3), notes(4, log_bytes=thin), notes(5)]
    assert spans(plan_runs(found, BIG, deletes_go=False)) == [(1, 3, False)]


def test_deletes_go_in_one_run_from_the_log_start() -> None:
    found = [notes(0), notes(1, 50), notes(2), notes(3, expired=1), notes(4, 99), notes(5), notes(6, 1)]
    assert spans(plan_runs(found, BIG, deletes_go=True)) == [(0, 5, True), (6, 7, False)]
    assert spans(plan_runs(found, BIG, deletes_go=False)) == [(1, 2, False), (4, 5, False), (6, 7, False)]
    dropped = [notes(0), notes(1, marker=MarkerFate.DROPPED), notes(2)]
    assert spans(plan_runs(dropped, BIG, deletes_go=True)) == [(0, 2, True)]
    assert plan_runs(dropped, BIG, deletes_go=False) == []


def test_a_first_sight_of_deletes_marks_them_anywhere() -> None:
    found = [notes(0), notes(1, fresh=2), notes(2), notes(3, marker=MarkerFate.MARKED)]
    assert spans(plan_runs(found, BIG, deletes_go=True)) == [(1, 2, False), (3, 4, False)]
    assert not forecast(notes(0, 0, fresh=0), deletes_go=True).deletes_go


def test_runs_are_no_longer_than_a_proposal() -> None:
    found = [notes(number, 50, expired=1) for number in range(10)]
    assert spans(plan_runs(found, BIG, deletes_go=True, segments_max=4)) == [
        (0, 4, True),
        (4, 8, False),
        (8, 10, False),
    ]


def test_outputs_end_at_their_size() -> None:
    next_one = forecast(notes(5, 50), deletes_go=True)
    assert next_one.bytes == BIG // 2
    assert not closes_before(next_one, 0, BIG // 2, False, BIG)
    assert closes_before(next_one, 0, BIG // 2 + 1, False, BIG)
    assert not closes_before(next_one, 0, 0, True, 1), "a segment holds at least one batch"
    assert closes_before(next_one, 0, 2**31 - 5_000, False, 2**40)
    assert closes_before(next_one, -(2**31), 1, False, BIG)


def test_the_inputs_reach_back_only_without_a_hole() -> None:
    assert reaches_back([segment(0), segment(1)], 0)
    assert reaches_back([segment(0), segment(1)], 50)
    assert not reaches_back([segment(1), segment(2)], 0)
    assert not reaches_back([segment(0), segment(2)], 0)
    assert dirty_ratio([segment(0, 30), segment(1, 10, rewritten=True)]) == 0.75
