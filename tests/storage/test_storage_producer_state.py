"""Producer state: each rule by itself, then against a model that remembers everything."""

import gc
import struct
import sys
from collections import OrderedDict, deque

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, at_once
from records.batch import CONTROL, SEQUENCE_MASK, TRANSACTIONAL, BatchHeader
from records.control import EndMarker, MarkerKind
from storage.producers.frozen_producers import LastRecord
from storage.producers.known_producer import BATCHES_KEPT
from storage.producers.producer_snapshot import join_parts
from storage.producers.producer_state import CompletedTransaction, Duplicate, ProducerStates

PID = 7


def batch(
    sequence: int,
    count: int = 1,
    *,
    offset: int = 0,
    epoch: int = 0,
    pid: int = PID,
    attributes: int = 0,
    at_ms: int = 5,
) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, attributes, count - 1, at_ms, at_ms, pid, epoch, sequence, count)


def marker(offset: int, epoch: int = 0, pid: int = PID) -> BatchHeader:
    return batch(-1, offset=offset, epoch=epoch, pid=pid, attributes=CONTROL | TRANSACTIONAL)


COMMIT, ABORT = EndMarker(MarkerKind.COMMIT, 3, 9), EndMarker(MarkerKind.ABORT, 3, 9)


def states(producers_max: int = 100, expiration_ms: int = 1000) -> ProducerStates:
    return ProducerStates(expiration_ms, producers_max)


def refusal(producers: ProducerStates, header: BatchHeader) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        producers.check(header)
    return caught.value.code


def test_sequences_follow_each_other() -> None:
    producers = states()
    assert producers.check(batch(0, 3)) is None
    producers.update(batch(0, 3, offset=10))
    assert producers.end_offset == 13
    assert producers.check(batch(3)) is None
    assert refusal(producers, batch(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, batch(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_recognised_again() -> None:
    producers = states()
    for number in range(7):
        producers.update(batch(2 * number, 2, offset=100 + 2 * number, at_ms=number))
    for number in range(7 - BATCHES_KEPT, 7):
        found = producers.check(batch(2 * number, 2))
        assert found == Duplicate(100 + 2 * number, 102 + 2 * number, number)
    assert refusal(producers, batch(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_old_epoch_is_fenced_and_a_new_one_begins_at_zero() -> None:
    producers = states()
    producers.update(batch(5, epoch=2))
    assert refusal(producers, batch(6, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, batch(5, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, batch(6, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(batch(0, epoch=3)) is None
    producers.update(batch(0, epoch=3, offset=1))
    assert refusal(producers, batch(5, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_whether_an_unknown_producer_may_go_on_is_for_the_caller_to_say() -> None:
    producers = states()
    assert producers.check(batch(0)) is None
    assert refusal(producers, batch(41)) is ErrorCode.UNKNOWN_PRODUCER_ID
    producers.update(batch(41))
    assert producers.check(batch(42)) is None


def test_sequences_wrap() -> None:
    producers = states()
    producers.update(batch(SEQUENCE_MASK - 1, 2))
    assert producers.check(batch(0)) is None
    assert refusal(producers, batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers = states()
    producers.update(batch(SEQUENCE_MASK, 3, offset=4))
    assert producers.check(batch(2)) is None
    assert producers.check(batch(SEQUENCE_MASK, 3)) == Duplicate(4, 7, 5)
    loaded = states()
    loaded.load_snapshot(producers.snapshot(), 7, 5)
    assert loaded.check(batch(SEQUENCE_MASK, 3)) == Duplicate(4, 7, 5)


def test_followers_take_what_the_leader_took() -> None:
    producers = states()
    producers.update(batch(0, offset=0))
    producers.update(batch(9, offset=1))
    assert producers.check(batch(10)) is None


def test_transactions_hold_the_stable_offset_until_their_marker_is_replicated() -> None:
    producers = states()
    producers.update(batch(0, 2, offset=10, attributes=TRANSACTIONAL))
    producers.update(batch(0, 2, offset=12, attributes=TRANSACTIONAL, pid=8))
    assert producers.first_unstable_offset == 10
    assert refusal(producers, batch(2)) is ErrorCode.INVALID_TXN_STATE
    assert producers.update(marker(14), ABORT) == CompletedTransaction(PID, 10, 14, True, 12)
    assert (producers.first_unstable_offset, producers.first_undecided_offset) == (10, 12)
    producers.on_high_watermark(14)
    assert producers.first_unstable_offset == 10
    producers.on_high_watermark(15)
    assert producers.first_unstable_offset == 12
    assert producers.update(marker(15, pid=8), COMMIT) == CompletedTransaction(8, 12, 15, False, 16)
    producers.on_high_watermark(16)
    assert producers.first_unstable_offset is None
    assert producers.update(marker(16), COMMIT) is None


def test_a_transaction_whose_marker_is_cut_is_not_stable() -> None:
    producers = states()
    producers.update(batch(0, 2, offset=10, attributes=TRANSACTIONAL))
    producers.update(marker(12), COMMIT)
    producers.on_high_watermark(12)
    producers.cut(3, 12)
    producers.on_high_watermark(12)
    assert producers.first_unstable_offset == 10, "the marker was above the high watermark"


@pytest.mark.parametrize("is_loaded", [False, True])
def test_where_final_markers_are_cut_nothing_is_stable(is_loaded: bool) -> None:
    """An unclean leader makes followers cut what was committed; a snapshot does not say what was."""
    producers = states()
    producers.update(batch(0, 2, offset=10, attributes=TRANSACTIONAL))
    producers.update(marker(12), COMMIT)
    if is_loaded:
        loaded = states()
        loaded.load_snapshot(producers.snapshot(), 13, 5)
        producers.adopt(loaded)
    else:
        producers.on_high_watermark(13)
    assert producers.first_unstable_offset is None
    producers.cut(3, 13)
    assert producers.first_unstable_offset is None, "the marker is still there"
    producers.cut(3, 12)
    producers.on_high_watermark(12)
    assert producers.first_unstable_offset == 3
    read = states()
    read.update(batch(0, 2, offset=10, attributes=TRANSACTIONAL))
    producers.adopt(read)
    assert producers.first_unstable_offset == 10


def test_forgotten_producers_are_read_again_where_their_batches_are_cut() -> None:
    """One may have had a transaction open at the new end; a log without any is cut for nothing."""
    producers = states(expiration_ms=1_000)
    assert not producers.cut(0, 5), "no producer ever"
    producers.update(batch(0, 2, offset=10, attributes=TRANSACTIONAL))
    producers.update(marker(12), ABORT)
    assert at_once(producers.expire(10**15)) == 1
    producers.update(batch(-1, offset=13, pid=-1))
    loaded = states()
    loaded.load_snapshot(producers.snapshot(), 14, 5)
    assert not producers.cut(0, 13)
    assert producers.end_offset == 13
    assert producers.cut(0, 12)
    assert loaded.cut(0, 13), "a snapshot does not say whom it does not know any more"
    assert not loaded.cut(0, 14)


def test_the_first_of_many_transactions_that_have_ended_is_found_without_a_look_at_the_gaps() -> None:
    """A dict that was large has its first key behind a gap for each one that is gone, unless it is ordered by links."""
    count = 5_000
    producers = states(producers_max=count)
    for pid in range(count):
        producers.update(batch(0, offset=pid, attributes=TRANSACTIONAL, pid=pid))
    for pid in range(count - 1):
        producers.update(marker(count + pid, pid=pid), COMMIT)
    assert (producers.first_undecided_offset, producers.first_unstable_offset) == (count - 1, 0)
    producers.on_high_watermark(2 * count - 2)
    assert (producers.first_undecided_offset, producers.first_unstable_offset) == (count - 1, count - 2)
    kept = [one for one in gc.get_referents(producers) if isinstance(one, dict | deque)]
    assert [len(one) for one in kept].count(1) == 2, "one is open, and one has ended above the high watermark"
    assert all(isinstance(one, OrderedDict | deque) for one in kept if len(one) < count // 2)
    producers.update(marker(2 * count - 1, pid=count - 1), COMMIT)
    producers.on_high_watermark(2 * count)
    assert producers.first_unstable_offset is None
    emptied = [one for one in gc.get_referents(producers) if isinstance(one, dict) and not one]
    assert sum(map(sys.getsizeof, emptied)) < 1_000, "and nothing is kept of them"
    (none_ended,) = (one for one in gc.get_referents(producers) if isinstance(one, deque))
    assert any(one is none_ended for one in gc.get_referents(states())), "which all logs without any share"


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "high watermark"]), st.integers(0, 1 << 16)), max_size=120))
def test_the_first_unstable_offset_is_that_of_all_transactions(steps: list[tuple[str, int]]) -> None:
    producers = states()
    opened: dict[int, int] = {}  # first offset by producer
    ended: list[tuple[int, int]] = []  # first offset and marker, of each one above the high watermark
    end = high_watermark = 0
    for number, (step, choice) in enumerate(steps):
        if step == "begin":
            producers.update(batch(0, offset=end, attributes=TRANSACTIONAL, pid=number))
            opened[number] = end
            end += 1
        elif step == "end" and opened:
            pid = sorted(opened)[choice % len(opened)]
            producers.update(marker(end, pid=pid), COMMIT)
            ended.append((opened.pop(pid), end))
            end += 1
        elif step == "high watermark":
            high_watermark += choice % (end - high_watermark + 1)
            producers.on_high_watermark(high_watermark)
            ended = [row for row in ended if row[1] >= high_watermark]
        unstable = [*opened.values(), *(first for first, _ in ended)]
        assert producers.first_unstable_offset == min(unstable, default=None)
        assert producers.first_undecided_offset == min(opened.values(), default=None)


def test_the_first_unstable_offset_of_thousands_that_have_ended_is_at_hand() -> None:
    count = 2_000
    producers = states(producers_max=count)
    for pid in range(count):
        producers.update(batch(0, offset=pid, attributes=TRANSACTIONAL, pid=pid))
    for pid in range(count):
        producers.update(marker(count + pid, pid=pid), COMMIT)
    ended = [one for one in gc.get_referents(producers) if isinstance(one, deque) and len(one) == count]
    assert len(ended) == 1 and ended[0][0] == (0, count), "the first of them is the first of all"
    assert producers.first_unstable_offset == 0


def test_a_marker_of_a_new_epoch_makes_the_next_batch_begin_at_zero() -> None:
    producers = states()
    producers.update(batch(0, 4, attributes=TRANSACTIONAL))
    producers.update(marker(4, epoch=1), COMMIT)
    assert refusal(producers, batch(4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, batch(4, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(batch(0, epoch=1)) is None
    assert producers.last_records() == {PID: LastRecord(-1, 1)}


def test_idle_producers_expire_but_open_transactions_stay() -> None:
    producers = states(expiration_ms=100)
    producers.update(batch(0, pid=1, at_ms=0))
    producers.update(batch(0, pid=2, at_ms=50, offset=1))
    producers.update(batch(0, pid=3, at_ms=0, offset=2, attributes=TRANSACTIONAL))
    assert at_once(producers.expire(99)) == 0
    assert at_once(producers.expire(100)) == 1
    assert [view.producer_id for view in producers.views()] == [2, 3]


def test_memory_is_bounded_and_the_longest_idle_goes_first() -> None:
    producers = states(producers_max=3)
    for number, pid in enumerate((1, 2, 3, 1, 4)):
        producers.update(batch(0, pid=pid, offset=number))
    assert [view.producer_id for view in producers.views()] == [3, 1, 4]
    for pid in range(100, 1100):
        producers.update(batch(0, pid=pid, offset=pid))
        assert len(producers) <= 3


def test_open_transactions_outlive_the_bound() -> None:
    producers = states(producers_max=2)
    for pid in (1, 2, 3):
        producers.update(batch(0, pid=pid, offset=pid, attributes=TRANSACTIONAL))
    assert len(producers) == 3
    producers.update(marker(4, pid=1), COMMIT)
    producers.update(batch(0, pid=9, offset=5))
    assert [view.producer_id for view in producers.views()] == [2, 3, 9]
    assert producers.first_undecided_offset == 2


def test_the_snapshot_is_kafkas_bytes() -> None:
    producers = states()
    producers.update(batch(3, 4, offset=20, epoch=2, at_ms=77, attributes=TRANSACTIONAL))
    producers.update(marker(24, pid=8, epoch=1), ABORT)
    body = struct.pack(">i", 2) + struct.pack(">qhiqiqiq", PID, 2, 6, 23, 3, 77, -1, 20)
    body += struct.pack(">qhiqiqiq", 8, 1, -1, -1, 0, 9, 3, -1)
    assert producers.snapshot() == struct.pack(">hI", 1, crc32c(body)) + body
    assert states().snapshot() == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)


def test_behind_kafkas_entries_a_snapshot_tells_all_batches_that_may_come_again() -> None:
    producers = states()
    for number in range(7):
        producers.update(batch(2 * number, 2, offset=100 + 2 * number, at_ms=number))
    producers.update(batch(0, pid=8, offset=114, at_ms=9))
    body = struct.pack(">i", 2) + struct.pack(">qhiqiqiq", PID, 0, 13, 113, 1, 6, -1, -1)
    body += struct.pack(">qhiqiqiq", 8, 0, 0, 114, 0, 9, -1, -1)
    body += b"TLPB" + struct.pack(">h", 1)
    for number in range(2, 7):
        body += struct.pack(">qiqiq", PID, 2 * number + 1, 101 + 2 * number, 1, number)
    assert producers.snapshot() == struct.pack(">hI", 1, crc32c(body)) + body
    loaded = states()
    loaded.load_snapshot(producers.snapshot(), 115, 10)
    for number in range(2, 7):
        assert loaded.check(batch(2 * number, 2)) == Duplicate(100 + 2 * number, 102 + 2 * number, number)
    assert refusal(loaded, batch(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert loaded.check(batch(0, pid=8)) == Duplicate(114, 115, 9)


@pytest.mark.parametrize("behind", [b"", b"\0", b"TLPB\0\2 of a version to come"])
def test_a_snapshot_that_tells_last_batches_alone_is_loaded_too(behind: bytes) -> None:
    """Apache Kafka's own."""
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PID, 0, 13, 113, 1, 6, -1, -1) + behind
    loaded = states()
    loaded.load_snapshot(struct.pack(">hI", 1, crc32c(body)) + body, 114, 10)
    assert loaded.check(batch(12, 2)) == Duplicate(112, 114, 6)
    assert refusal(loaded, batch(10, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert loaded.check(batch(14)) is None


def test_after_a_marker_a_batch_keeps_its_own_timestamp() -> None:
    producers = states()
    producers.update(batch(0, offset=0, at_ms=3, attributes=TRANSACTIONAL))
    producers.update(marker(1), COMMIT)
    loaded = states()
    loaded.load_snapshot(producers.snapshot(), 2, 10)
    assert loaded.check(batch(0)) == producers.check(batch(0)) == Duplicate(0, 1, 3)


@pytest.mark.parametrize("at", range(0, 118, 3))
def test_a_damaged_snapshot_changes_nothing(at: int) -> None:
    producers = states()
    producers.update(batch(0, 3))
    producers.update(batch(3, 4))
    data = bytearray(producers.snapshot())
    data[at] ^= 0x40
    for damaged in (bytes(data), producers.snapshot()[:at], producers.snapshot() + b"\0"):
        with pytest.raises(ValueError, match="producer snapshot"):
            producers.load_snapshot(damaged, 99, 0)
    assert producers.end_offset == 4
    assert producers.check(batch(0, 3)) is not None
    assert len(producers) == 1


def test_expired_producers_are_not_loaded() -> None:
    producers = states(expiration_ms=100)
    producers.update(batch(0, pid=1, at_ms=0))
    producers.update(batch(0, pid=2, at_ms=60, offset=1))
    loaded = states(expiration_ms=100)
    loaded.load_snapshot(producers.snapshot(), 2, 120)
    assert [view.producer_id for view in loaded.views()] == [2]
    assert loaded.end_offset == 2


class Model:
    """All batches ever appended, searched from the start for each question."""

    def __init__(self) -> None:
        self.log: list[BatchHeader] = []

    def answer(self, header: BatchHeader) -> Duplicate | ErrorCode | None:
        mine = [known for known in self.log if known.producer_id == header.producer_id]
        if not mine:
            return ErrorCode.UNKNOWN_PRODUCER_ID if header.base_sequence else None
        epoch = mine[-1].producer_epoch
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > epoch:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if header.base_sequence else None
        recent = [known for known in mine if known.producer_epoch == epoch][-BATCHES_KEPT:]
        for known in recent:
            if (known.base_sequence, known.count) == (header.base_sequence, header.count):
                return Duplicate(known.base_offset, known.next_offset, known.max_timestamp)
        due = (recent[-1].base_sequence + recent[-1].count) % 2**31
        return None if header.base_sequence == due else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


near_the_wrap = st.sampled_from([0, 1, 2, 3, SEQUENCE_MASK - 1, SEQUENCE_MASK])


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), near_the_wrap, st.integers(1, 3), st.booleans())))
def test_leader_answers_match_the_model(attempts: list[tuple[int, int, int, int, bool]]) -> None:
    producers, model, offset = states(), Model(), 0
    for pid, epoch, sequence, count, in_order in attempts:
        mine = [known for known in model.log if (known.producer_id, known.producer_epoch) == (pid, epoch)]
        if in_order and mine:
            sequence = (mine[-1].base_sequence + mine[-1].count) % 2**31
        header = batch(sequence, count, pid=pid, epoch=epoch, offset=offset, at_ms=offset)
        answer = _answer(producers, header)
        assert answer == model.answer(header)
        if answer in (None, ErrorCode.UNKNOWN_PRODUCER_ID):
            producers.update(header)
            model.log.append(header)
            offset = header.next_offset
    replayed = states()
    for header in model.log:
        replayed.update(header)
    assert replayed.snapshot() == producers.snapshot()
    loaded = states(expiration_ms=2**60)
    loaded.load_snapshot(producers.snapshot(), producers.end_offset, 0)
    assert loaded.snapshot() == producers.snapshot()
    assert loaded.last_records() == producers.last_records()
    for header in model.log:
        answers = {_answer(one, header) for one in (replayed, loaded)}
        assert answers == {model.answer(header)}


def _answer(producers: ProducerStates, header: BatchHeader) -> Duplicate | ErrorCode | None:
    try:
        return producers.check(header)
    except ProtocolError as error:
        return error.code


def test_frozen_producers_are_as_they_were_whatever_comes_after() -> None:
    producers = states(producers_max=1_000)
    for pid in range(300):
        producers.update(batch(0, offset=pid, pid=pid, attributes=TRANSACTIONAL))
    before = producers.snapshot()
    frozen = producers.freeze()
    slices = frozen.encode()
    next(slices)
    for pid in range(0, 400, 3):
        producers.update(marker(1_000 + pid, pid=pid), ABORT)
        producers.update(batch(1, offset=2_000 + pid, pid=pid))
    assert at_once(producers.expire(2_000)) > 0
    assert join_parts(at_once(frozen.encode())) == before
    assert producers.snapshot() != before


def test_producers_are_encoded_and_expired_in_bounded_steps() -> None:
    producers = states(producers_max=100_000)
    for pid in range(5_000):
        producers.update(batch(0, offset=pid, pid=pid))
    assert max(producers.freeze().encode()) <= SLICE_COST
    assert max(producers.expire(0)) <= SLICE_COST


def marker_refusal(producers: ProducerStates, epoch: int, coordinator_epoch: int, *, exceeds: bool) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        producers.check_marker(PID, epoch, coordinator_epoch, exceeds=exceeds)
    return caught.value.code


@pytest.mark.parametrize("exceeds", [False, True])
def test_a_marker_follows_its_coordinator_and_its_producer(exceeds: bool) -> None:
    producers = states()
    assert producers.check_marker(PID, 4, 3, exceeds=exceeds), "it fences, even where nothing is known"
    producers.update(batch(0, offset=0, epoch=4, attributes=TRANSACTIONAL))
    assert producers.has_open_transaction(PID, 4) and not producers.has_open_transaction(PID, 3)
    assert marker_refusal(producers, 3, 3, exceeds=exceeds) is ErrorCode.INVALID_PRODUCER_EPOCH
    if exceeds:
        assert marker_refusal(producers, 4, 3, exceeds=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    ends = 5 if exceeds else 4
    assert producers.check_marker(PID, ends, 3, exceeds=exceeds)
    producers.update(marker(1, ends), COMMIT)
    assert not producers.has_open_transaction(PID, ends)
    assert producers.epoch_of(PID) == ends
    assert not producers.check_marker(PID, ends, 3, exceeds=exceeds), "repeated"
    assert marker_refusal(producers, ends, 2, exceeds=exceeds) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert producers.check_marker(PID, ends, 4, exceeds=False), "the older protocol cannot tell it from a new one"
    assert not producers.check_marker(PID, ends, 4, exceeds=True)
    assert refusal(producers, batch(1, epoch=3, attributes=TRANSACTIONAL)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_replicated_markers_are_forgotten_in_their_order() -> None:
    producers = states()
    for number in range(50):
        producers.update(batch(0, offset=2 * number, pid=number, attributes=TRANSACTIONAL))
        producers.update(marker(2 * number + 1, pid=number), COMMIT)
    for high_watermark in range(0, 101, 2):
        producers.on_high_watermark(high_watermark)
        assert producers.first_unstable_offset == (high_watermark if high_watermark < 100 else None)
