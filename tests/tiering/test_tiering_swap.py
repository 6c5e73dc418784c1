"""A job's segments take the place of others: when that is legal, and what the shard's records bring back of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiering.segments import segment
from tests.tiering.test_tiering_shard import TOPIC_ID, ShardDriver, compacted, replayed
from tiering.bucket.segment import Section, SegmentId, SegmentState, TieredSegment
from tiering.shard.shard_protocol import Adopt, Claim, Done, FinishDelete, MoveLogStart, StartCopy, StartDelete, Swap
from tiering.shard.swap import merged_epochs, swap_complaint
from tiering.shard.tier_shard import TierShard


def rewritten(inputs: Sequence[TieredSegment], number: int) -> TieredSegment:
    """What a job could make of them: one segment with half of the records."""
    first, last = inputs[0], inputs[-1]
    made = segment(first.base_offset, last.end_offset, number, epochs=merged_epochs(inputs), leader_epoch=-1)
    return replace(
        made,
        sections=dict(last.sections),
        object_bytes=2 * made.object_bytes,
        max_timestamp=last.max_timestamp,
        records=(last.end_offset - first.base_offset) // 2,
        rewritten=True,
        log_bytes=last.log_bytes,
    )


def swap_of(inputs: Sequence[TieredSegment], outputs: Sequence[TieredSegment], **fields: object) -> Swap:
    return replace(Swap(1, 10, "p", [one.id for one in inputs], list(outputs)), **fields)


@pytest.fixture
def driver() -> ShardDriver:
    driver = ShardDriver()
    driver.claim(1)
    for base in (0, 10, 20, 30):
        driver.copy(base, base + 10)
    return driver


def finished(driver: ShardDriver) -> list[TieredSegment]:
    return list(driver.tier.segments(0))


# what is legal ---------------------------------------------------------------------------------------------


def test_outputs_take_the_place_of_their_inputs(driver: ShardDriver) -> None:
    inputs = finished(driver)[1:3]
    output = rewritten(inputs, 77)
    driver.now_ms = 9_000
    driver.done(swap_of(inputs, [output]))
    kept = finished(driver)
    assert [(one.base_offset, one.end_offset) for one in kept] == [(0, 10), (10, 30), (30, 40)]
    assert kept[1] == replace(output, broker_id=1, leader_epoch=1, changed_ms=9_000)
    assert [(one.id, one.changed_ms) for one in driver.tier.deleting()] == [(one.id, 9_000) for one in inputs]
    assert driver.tier.tier_end_offset == 40
    assert driver.tier.record.swapped_offset > 0
    assert driver.tier.swap is None
    assert driver.tier.rewritten_count == 1
    driver.done(swap_of([kept[1]], [rewritten([kept[1]], 78)]))
    assert driver.tier.rewritten_count == 1
    assert driver.tier.log_bytes == sum(one.log_bytes for one in driver.tier.segments(0))


def test_a_swap_may_be_repeated_for_as_long_as_an_output_is_known(driver: ShardDriver) -> None:
    inputs = finished(driver)[1:3]
    output = rewritten(inputs, 77)
    request = swap_of(inputs, [output])
    driver.done(request)
    before = len(driver.log)
    assert driver.done(request).records
    driver.done(FinishDelete(1, 10, [one.id for one in inputs]))
    driver.done(request)
    again = rewritten([driver.tier.get(output.id) or output], 78)
    driver.done(swap_of([output], [again]))
    driver.done(request)  # its output is being deleted by now
    assert [one.uuid for one in finished(driver)][1] == again.uuid
    driver.done(FinishDelete(1, 10, [output.id]))
    assert driver.refused(request) == "ILLEGAL_TRANSITION"
    assert len(driver.log) > before


def test_a_swap_that_comes_too_late_is_refused(driver: ShardDriver) -> None:
    """Its objects may have gone to the sweeper; one that was made in time is known for good."""
    inputs = finished(driver)[1:3]
    driver.now_ms = 9_000
    request = swap_of(inputs, [rewritten(inputs, 77)], expires_ms=9_000)
    driver.now_ms = 9_001
    assert driver.refused(request) == "INVALID"
    driver.now_ms = 9_000
    driver.done(request)
    driver.now_ms = 9_001
    driver.done(request)


def test_an_input_that_changed_is_refused(driver: ShardDriver) -> None:
    inputs = finished(driver)[:2]
    driver.done(swap_of(inputs[:1], [rewritten(inputs[:1], 50)]))
    assert driver.refused(swap_of(inputs, [rewritten(inputs, 51)])) == "ILLEGAL_TRANSITION"
    driver.done(FinishDelete(1, 10, [inputs[0].id]))
    assert driver.refused(swap_of(inputs, [rewritten(inputs, 51)])) == "ILLEGAL_TRANSITION"


def test_an_input_below_the_log_start_is_refused(driver: ShardDriver) -> None:
    inputs = finished(driver)[:2]
    driver.done(MoveLogStart(1, 10, 9, "retention"))
    driver.done(MoveLogStart(1, 10, 10, "retention"))
    assert driver.refused(swap_of(inputs, [rewritten(inputs, 50)])) == "ILLEGAL_TRANSITION"
    driver.done(StartDelete(1, 10, [inputs[0].id]))
    assert driver.refused(swap_of(inputs, [rewritten(inputs, 50)])) == "ILLEGAL_TRANSITION"
    driver.done(swap_of(inputs[1:], [rewritten(inputs[1:], 50)]))


def test_what_hides_older_records_may_go_only_with_them(driver: ShardDriver) -> None:
    inputs = finished(driver)[1:3]
    request = swap_of(inputs, [rewritten(inputs, 50)], reaches_log_start=True)
    assert driver.refused(request) == "ILLEGAL_TRANSITION"
    driver.done(MoveLogStart(1, 10, 10, "retention"))
    driver.done(request)


def test_only_the_claimed_leader_may_ask(driver: ShardDriver) -> None:
    inputs = finished(driver)[:1]
    request = swap_of(inputs, [rewritten(inputs, 50)])
    driver.claim(2, broker_id=2)
    assert driver.refused(request) == "FENCED"
    driver.done(replace(request, leader_epoch=2))


def test_an_erasure_says_up_to_where(driver: ShardDriver) -> None:
    inputs = finished(driver)[:2]
    request = swap_of(inputs, [rewritten(inputs, 50)], erase_end=41)
    assert driver.refused(request) == "INVALID"
    driver.now_ms = 8_000
    driver.done(replace(request, erase_end=40))
    record = driver.tier.record
    assert (record.erased_end_offset, record.erased_ms) == (40, 8_000)
    driver.claim(2, broker_id=2)
    assert driver.tier.record.erased_end_offset == 40


def test_a_copy_goes_on_behind_a_swap(driver: ShardDriver) -> None:
    under_way = segment(40, 50, state=SegmentState.COPY_STARTED)
    driver.done(StartCopy(1, 10, under_way))
    inputs = finished(driver)[2:]
    driver.done(swap_of(inputs, [rewritten(inputs, 50)]))
    driver.copy(40, 50)
    assert [one.base_offset for one in finished(driver)] == [0, 10, 20, 40]


def test_an_adoption_comes_first() -> None:
    driver = ShardDriver()
    driver.claim(3)
    inputs = [segment(0, 10), segment(10, 20)]
    driver.done(Adopt(3, 10, 7, 0, inputs, final=False))
    request = replace(swap_of(inputs, [rewritten(inputs, 50)]), leader_epoch=3)
    assert driver.refused(request) == "ILLEGAL_TRANSITION"
    driver.done(Adopt(3, 10, 7, 0, [], final=True))
    driver.done(request)


Spoil = Callable[[list[TieredSegment], TieredSegment], list[TieredSegment]]
SPOILED: dict[str, Spoil] = {
    "cover": lambda inputs, output: [replace(output, end_offset=output.end_offset + 1)],
    "cover [": lambda inputs, output: [rewritten(inputs[:1], 50)],
    "do not touch": lambda inputs, output: [rewritten(inputs[:1], 50), rewritten(inputs[2:], 51)],
    "no input ends there": lambda inputs, output: [
        replace(output, end_offset=15),
        replace(rewritten(inputs, 51), base_offset=15, epochs=[(1, 0)]),
    ],
    "leader epochs": lambda inputs, output: [replace(output, epochs=[(1, 0), (2, 5)])],
    "timestamp": lambda inputs, output: [replace(output, max_timestamp=output.max_timestamp + 1)],
    "leader_epochs": lambda inputs, output: [replace(output, sections={})],
    "section leader_epochs": lambda inputs, output: [
        replace(output, sections=output.sections | {"leader_epochs": Section(output.log_bytes, 20, 3)})
    ],
    "producer_snapshot": lambda inputs, output: [
        replace(output, sections=output.sections | {"producer_snapshot": Section(output.log_bytes, 5, 3)})
    ],
    "rewritten": lambda inputs, output: [replace(output, rewritten=False)],
    "finished": lambda inputs, output: [replace(output, state=SegmentState.COPY_STARTED)],
    "taken": lambda inputs, output: [replace(output, uuid=inputs[0].uuid)],
    "outputs": lambda inputs, output: [],
}


@pytest.mark.parametrize("reason", list(SPOILED))
def test_outputs_that_do_not_fit_are_told_why(driver: ShardDriver, reason: str) -> None:
    inputs = finished(driver)[:3]
    output = rewritten(inputs, 50)
    assert swap_complaint(inputs, [output]) is None
    spoiled = SPOILED[reason](inputs, output)
    problem = swap_complaint(inputs, spoiled)
    assert problem is not None
    assert reason in problem
    assert driver.refused(swap_of(inputs, spoiled)) == "INVALID"


def test_an_output_cannot_take_the_name_of_a_segment_that_lives(driver: ShardDriver) -> None:
    first, second, third = finished(driver)[:3]
    output = replace(rewritten([second], 50), uuid=third.uuid)
    driver.done(swap_of([second], [output]))  # another key: the offset is part of it
    assert driver.refused(swap_of([first], [replace(rewritten([first], 51), uuid=first.uuid)])) == "INVALID"


def test_epochs_of_inputs_become_one_chain() -> None:
    chain = merged_epochs(
        [
            segment(10, 20, epochs=[(1, 3), (2, 15)]),
            segment(20, 30, epochs=[(2, 15)]),
            segment(30, 40, epochs=[(2, 15), (4, 33), (5, 39)]),
        ]
    )
    assert chain == [(1, 3), (2, 15), (4, 33), (5, 39)]


# any beginning ---------------------------------------------------------------------------------------------

LATER: dict[str, Callable[[ShardDriver], object]] = {
    "nothing": lambda driver: None,
    "claim": lambda driver: driver.ask(Claim(2, 2, 10, "flights", metadata_offset=2)),
    "log start": lambda driver: driver.ask(MoveLogStart(1, 10, 15, "retention")),
    "copy": lambda driver: driver.ask(StartCopy(1, 10, segment(40, 50, state=SegmentState.COPY_STARTED))),
    "delete": lambda driver: driver.ask(FinishDelete(1, 10, [one.id for one in driver.tier.deleting()])),
}


@settings(max_examples=300, deadline=None)
@given(
    kept=st.integers(1, 20),
    later=st.lists(st.sampled_from(list(LATER)), max_size=3),
    dirty_from=st.integers(0, 60),
    keep_tombstones=st.booleans(),
)
def test_any_beginning_of_a_swap_is_all_of_it(
    kept: int, later: list[str], dirty_from: int, keep_tombstones: bool
) -> None:
    """The host dies after `kept` records; the next one goes on; then the log is compacted."""
    driver = ShardDriver()
    driver.claim(1)
    for base in (0, 10, 20, 30):
        driver.copy(base, base + 10)
    inputs = finished(driver)[1:3]
    output = rewritten(inputs, 77)
    before = len(driver.log)
    driver.done(swap_of(inputs, [output], erase_end=30))
    whole = [(one.base_offset, one.end_offset) for one in finished(driver)]
    del driver.log[before + kept :]
    driver.shard = replayed(driver.log)
    assert [(one.base_offset, one.end_offset) for one in finished(driver)] == whole
    assert {one.id for one in driver.tier.deleting()} == {one.id for one in inputs}
    assert driver.tier.record.erased_end_offset == 30
    for what in later:
        LATER[what](driver)
    if any(what != "nothing" for what in later):
        assert driver.tier.swap is None
    live = list(driver.shard.records())
    assert list(replayed(driver.log).records()) == live
    assert list(replayed(compacted(driver.log, dirty_from, keep_tombstones=keep_tombstones)).records()) == live


def test_a_repeat_after_the_host_died_writes_the_rest(driver: ShardDriver) -> None:
    inputs = finished(driver)[1:3]
    request = swap_of(inputs, [rewritten(inputs, 77)])
    before = len(driver.log)
    driver.done(request)
    del driver.log[before + 1 :]
    driver.shard = replayed(driver.log)
    assert driver.tier.swap is not None
    reply = driver.done(request)
    assert driver.tier.swap is None
    assert reply.tier_state_offset == driver.tier.state_offset == len(driver.log) - 1


def test_a_leaders_view_follows_a_swap(driver: ShardDriver) -> None:
    view = driver.claim(2, broker_id=2)
    inputs = finished(driver)[1:3]
    reply = driver.done(replace(swap_of(inputs, [rewritten(inputs, 77)]), leader_epoch=2))
    assert isinstance(reply, Done)
    assert reply.after == view.state_offset
    view.replay(reply.records)
    assert view.to_records() == driver.tier.to_records()
    assert view.state_offset == reply.tier_state_offset
    for offset in range(40):
        held = view.find(offset)
        assert held is not None
        assert held.base_offset <= offset < held.end_offset
    assert view.find(12) == view.get(SegmentId(10, f"{77:032x}"))


def test_a_swap_is_atomic_for_a_shard_that_has_forgotten_the_inputs() -> None:
    """A compacted log may hold the swap without its inputs' records, and with those that followed."""
    driver = ShardDriver()
    driver.claim(1)
    driver.copy(0, 10)
    (first,) = finished(driver)
    driver.done(swap_of([first], [rewritten([first], 5)]))
    driver.done(FinishDelete(1, 10, [first.id]))
    shard = TierShard()
    for record in driver.log[3:]:
        shard.replay(*record)
    assert [one.uuid for one in shard.partitions[TOPIC_ID, 0].segments(0)] == [f"{5:032x}"]
