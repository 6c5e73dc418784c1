"""What a leader knows of its followers, and where the metadata ends for them."""

from __future__ import annotations

from kraft.batches import Batch
from kraft.metadata_log import MetadataLog
from kraft.quorum.follower_progress import FollowerProgress, FollowerState
from kraft.records import NoOpRecord
from tests.kraft.test_image_replay import header


def test_a_follower_a_little_behind_a_growing_log_was_caught_up_when_it_answered_before() -> None:
    progress = FollowerProgress()
    progress.answered(1, 10, 10, now=1.0)
    assert progress.states([(1, 10)], now=2.0) == {1: FollowerState(10, 1.0, 1.0)}
    progress.answered(1, 12, 15, now=3.0)
    assert progress.states([(1, 12)], now=3.0) == {1: FollowerState(12, 0.0, 2.0)}
    progress.answered(1, 13, 20, now=4.0)
    assert progress.states([(1, 13)], now=5.0) == {1: FollowerState(13, 1.0, 4.0)}, "it had not what was the end at 3.0"


def test_one_that_has_not_answered_in_this_leadership_has_no_times() -> None:
    progress = FollowerProgress()
    progress.answered(1, 10, 10, now=1.0)
    progress.begin()
    unknown = FollowerState(0, None, None)
    assert progress.states([(1, 0), (2, 0)], now=2.0) == {1: unknown, 2: unknown}


def test_the_end_of_the_metadata_for_who_has_entries_of_the_quorums_log() -> None:
    """Entries 5, 8 and 9 hold batches of two records; the others hold none."""
    log = MetadataLog(batches_max=2)
    for number, index in enumerate((5, 8, 9)):
        log.append(Batch(header(base=2 * number, sequence=number), [NoOpRecord(), NoOpRecord()]), None, index)
    assert [log.end_offset_at(index) for index in (4, 5, 7, 8, 9, 12)] == [None, 2, 2, 4, 6, 6]
    log.reset(100, 1)
    assert log.end_offset_at(3) == 100, "a snapshot has all before"
