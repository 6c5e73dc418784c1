"""Offsets in transactions: when they count, who sees them, and that whatever rebuilds a shard has the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.records import offset_record
from broker.coordination.groups.values import (
    UNSTABLE,
    CommitRequest,
    CommittedOffset,
    GroupState,
    OffsetToCommit,
    PendingCommitRequest,
)
from broker.coordination.loading import LoadLimits, replay_chunk, replay_records
from broker.coordination.packed_records import read_runs
from broker.coordination.shard import CoordinatorRecord
from broker.partitions.transactional_appends import Marker
from common.decision import ProducerStamp
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.image.key_ranges import Keeping
from records.batch import read_header, stamp
from records.builder import build_batch
from records.compression import Compression
from records.record import Record, inflate_records
from tests.broker.coordinated_partition import marker_batch
from tests.broker.group_driver import GROUP, GroupDriver
from tests.broker.test_groups_scale import new_shard
from tests.common.call_count import counted_calls

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
DAY_S = 86_400.0
ONE, TWO = ProducerStamp(7, 0), ProducerStamp(8, 3)


class Driver(GroupDriver):
    """A group driver whose shard also has transactions; every call is a batch of its own."""

    batches = 0

    def append(self, records: list[CoordinatorRecord]) -> None:
        self.shard.begin_batch(self.batches)
        self.batches += 1
        super().append(records)

    def commit_pending(
        self,
        producer: ProducerStamp,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        group: str = GROUP,
        metadata: str = "",
    ) -> Any:
        items = tuple(OffsetToCommit(t, p, offset, 3, metadata, self.topics[t]) for (t, p), offset in offsets.items())
        commit = CommitRequest(group, member_id, instance, generation, items)

        def decide(now: Any, _: int) -> Any:
            decision = self.shard.commit_pending(PendingCommitRequest(commit, producer), now)
            assert decision.producer == producer
            self.shard.begin_batch(self.batches)
            self.batches += 1
            self.shard.replay_pending(producer, list(decision.records))
            decision.records = []
            return decision

        return self.replies[self.ask(commit, decide)]

    def end(self, producer: ProducerStamp, *, commit: bool) -> None:
        self.shard.begin_batch(self.batches)
        self.batches += 1
        self.shard.end_transaction(producer, commit=commit)

    def offset(self, topic: str = "t", partition: int = 0, *, stable: bool = False) -> int | str | None:
        found = self.shard.fetch_offset(GROUP, topic, partition, stable=stable)
        if found is UNSTABLE:
            return "unstable"
        return None if found is None else found.offset


def test_a_pending_offset_is_invisible_until_its_marker() -> None:
    driver = Driver(QUICK)
    driver.commit({("t", 0): 1})
    assert driver.commit_pending(ONE, {("t", 0): 5, ("t", 1): 6}) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (driver.offset(), driver.offset("t", 1)) == (1, None)
    assert driver.offset(stable=True) == driver.offset("t", 1, stable=True) == "unstable"
    assert driver.offset("t", 2, stable=True) is None
    found = at_once(driver.shard.fetch_offsets(GROUP, stable=True))
    assert found == {"t": {0: UNSTABLE}}
    assert found["t"][0] is UNSTABLE
    driver.end(ONE, commit=True)
    assert (driver.offset(stable=True), driver.offset("t", 1)) == (5, 6)
    assert not driver.shard.has_pending


def test_an_aborted_offset_never_counts() -> None:
    driver = Driver(QUICK)
    driver.commit({("t", 0): 1})
    driver.commit_pending(ONE, {("t", 0): 5, ("t", 1): 6})
    driver.end(ONE, commit=False)
    assert (driver.offset(stable=True), driver.offset("t", 1)) == (1, None)


def test_the_order_of_records_decides_and_not_that_of_markers() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5, ("t", 1): 5})
    driver.commit_pending(TWO, {("t", 0): 6})
    driver.commit({("t", 1): 7})
    driver.end(TWO, commit=True)
    assert driver.offset(stable=True) == "unstable"
    driver.end(ONE, commit=True)
    assert (driver.offset(), driver.offset("t", 1)) == (6, 7)


def test_a_producer_replaces_what_it_has_sent_in_the_same_transaction() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.commit_pending(ONE, {("t", 0): 4})
    driver.end(ONE, commit=True)
    assert driver.offset() == 4


def test_members_are_checked_but_neither_their_rebalance_nor_their_absence() -> None:
    driver = Driver(QUICK)
    place = {("t", 0): 1}
    assert driver.commit_pending(ONE, place, generation=3) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_pending(ONE, place) == (ErrorCode.NONE,), "a group that only commits"
    assert driver.commit_pending(ONE, place, "m", 3) is ErrorCode.UNKNOWN_MEMBER_ID, "it is there, and has no members"
    generation, ids = driver.stable_group(1)
    assert driver.commit_pending(ONE, place, ids[0], generation) == (ErrorCode.NONE,)
    assert driver.commit_pending(ONE, place, ids[0], generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_pending(ONE, place, ids[0]) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_pending(ONE, place, "stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit_pending(ONE, place) == (ErrorCode.NONE,), "old producers name nobody"
    driver.join(ids[0])
    driver.advance(0.1)
    assert driver.shard.describe(GROUP).state is GroupState.COMPLETING_REBALANCE
    assert driver.commit(place, ids[0], generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.commit_pending(ONE, place, ids[0], generation + 1) == (ErrorCode.NONE,)


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    driver = Driver(QUICK)
    ticket = driver.join(instance="i")
    driver.advance(0.1)
    first = driver.joined(ticket)
    driver.sync(first.member_id, first.generation, {first.member_id: b"x"}, instance="i")
    ticket = driver.join(instance="i")
    driver.advance(0.1)
    second = driver.joined(ticket)
    for member_id, code in ((first.member_id, ErrorCode.FENCED_INSTANCE_ID), (second.member_id, None)):
        reply = driver.commit_pending(ONE, {("t", 0): 1}, member_id, second.generation, instance="i")
        assert reply == (code if code is not None else (ErrorCode.NONE,))


def test_a_commit_in_a_transaction_keeps_no_member_alive() -> None:
    driver = Driver(QUICK)
    generation, ids = driver.stable_group(1, session_ms=10_000)
    driver.advance(6.0)
    driver.commit_pending(ONE, {("t", 0): 1}, ids[0], generation)
    driver.advance(6.0)
    assert driver.heartbeat(ids[0], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_request_without_a_group_or_with_too_long_metadata_is_refused() -> None:
    driver = Driver(QUICK)
    assert driver.commit_pending(ONE, {("t", 0): 1}, group="") is ErrorCode.INVALID_GROUP_ID
    long = "m" * (QUICK.offset_metadata_max_bytes + 1)
    assert driver.commit_pending(ONE, {("t", 0): 1}, metadata=long) == (ErrorCode.OFFSET_METADATA_TOO_LARGE,)
    assert not driver.shard.has_pending


def test_nothing_expires_where_an_offset_is_pending() -> None:
    driver = Driver(QUICK)
    driver.commit({("t", 0): 1, ("t", 1): 1})
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.advance(8 * DAY_S)
    assert (driver.offset(), driver.offset("t", 1)) == (1, None)
    driver.end(ONE, commit=False)
    driver.advance(1 * DAY_S)
    assert driver.offset() is None


def test_a_group_with_pending_offsets_is_not_forgotten() -> None:
    driver = Driver(QUICK)
    _, ids = driver.stable_group(1)
    driver.leave(ids[0])
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.advance(8 * DAY_S)
    assert GROUP in driver.shard.committed
    driver.end(ONE, commit=False)
    driver.advance(1 * DAY_S)
    assert GROUP not in driver.shard.committed


def test_pending_offsets_alone_make_a_group() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5})
    assert [listed.group_id for listed in at_once(driver.shard.list_groups())] == [GROUP]
    assert driver.shard.describe(GROUP).state is GroupState.EMPTY


def test_a_deleted_group_loses_its_pending_offsets() -> None:
    driver = Driver(QUICK)
    driver.commit({("t", 0): 1})
    driver.commit_pending(ONE, {("t", 0): 5, ("t", 1): 6, ("u", 0): 7})
    codes: list[ErrorCode | None] = []
    while None in codes[-1:] or not codes:
        decision = driver.shard.delete_group(GROUP, 2)
        driver.append(decision.records)
        codes.append(decision.reply)
    assert codes == [None, ErrorCode.NONE]
    driver.end(ONE, commit=True)
    assert driver.shard.describe(GROUP).state is GroupState.DEAD


def test_a_deleted_offset_stays_deleted_when_its_transaction_commits() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5, ("t", 1): 6})
    decision = driver.shard.delete_offsets(GROUP, (("t", 0),))
    assert decision.reply == (ErrorCode.NONE,)
    driver.append(decision.records)
    driver.end(ONE, commit=True)
    assert (driver.offset(), driver.offset("t", 1)) == (None, 6)


def test_pending_offsets_of_a_deleted_topic_go() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5, ("u", 0): 6})
    del driver.topics["t"]
    driver.append(driver.shard.topics_deleted(driver.now))
    driver.advance(1.0)
    driver.end(ONE, commit=True)
    assert (driver.offset("t"), driver.offset("u")) == (None, 6)


def test_pending_offsets_of_a_new_topic_outlive_the_old_one_of_that_name() -> None:
    driver = Driver(QUICK)
    driver.commit({("t", 0): 1})
    driver.topics["t"] = bytes([9] * 16)
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.append(driver.shard.topics_deleted(driver.now))
    driver.advance(1.0)
    driver.end(ONE, commit=True)
    assert driver.offset() == 5


def test_a_group_is_handed_over_when_its_transactions_have_ended() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.keeping = Keeping.LEAVING
    driver.append(driver.shard.keeping_changed(GROUP, driver.now))
    with pytest.raises(ProtocolError) as caught:
        at_once(driver.shard.records_of(GROUP))
    assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.end(ONE, commit=True)
    assert len(at_once(driver.shard.records_of(GROUP))) == 1


def test_what_is_left_behind_after_a_move_goes_with_what_is_pending() -> None:
    driver = Driver(QUICK)
    driver.commit_pending(ONE, {("t", 0): 5})
    driver.keeping = Keeping.FOREIGN
    driver.append(driver.shard.keeping_changed(GROUP, driver.now))
    driver.advance(1.0)
    assert not list(filter(None, driver.shard.names((GROUP,))))
    assert not driver.shard.has_pending


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_over_ten_thousand_offsets_is_a_few_calls(commit: bool) -> None:
    shard, places = new_shard(), range(10_000)
    shard.begin_batch(0)
    shard.replay_pending(ONE, [record_of(("g", place), place) for place in places])
    shard.replay_pending(TWO, [record_of(("g", place + 5_000), 1) for place in places])
    shard.begin_batch(1)
    with counted_calls() as count:
        shard.end_transaction(ONE, commit=commit)
    assert count.calls < 100
    last = shard.fetch_offset("g", "t", places[-1], stable=False)
    assert (last is not None and last.offset == places[-1]) is commit


# whatever rebuilds a shard -----------------------------------------------------------------------------------

PLACES = [("g", 0), ("g", 1), ("h", 0)]
STEPS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(PLACES), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(PLACES), st.booleans()),
    st.tuples(st.just("pending"), st.sampled_from(PLACES), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("end"), st.booleans(), st.sampled_from([ONE, TWO])),
)
Place = tuple[str, int]
Step = tuple[str, Any, Any]


class Model:
    """What an offset is, by the rule: of the records that count, the last in the log."""

    def __init__(self) -> None:
        self.records: dict[Place, list[tuple[int, int | None, ProducerStamp | None]]] = {}

    def plain(self, place: Place, at: int, value: int | None) -> None:
        kept = self.records.setdefault(place, [])
        if value is None:
            kept.clear()
        kept.append((at, value, None))

    def pending(self, place: Place, at: int, value: int, producer: ProducerStamp) -> None:
        self.records.setdefault(place, []).append((at, value, producer))

    def end(self, producer: ProducerStamp, *, commit: bool) -> None:
        for place, kept in self.records.items():
            mine = [(at, value, None if by == producer else by) for at, value, by in kept]
            self.records[place] = mine if commit else [one for one in kept if one[2] != producer]

    def offset(self, place: Place) -> int | None:
        return next((value for _, value, by in reversed(self.records.get(place, [])) if by is None), None)

    def is_unstable(self, place: Place) -> bool:
        return any(by is not None for _, _, by in self.records.get(place, []))


def record_of(place: Place, value: int | None) -> CoordinatorRecord:
    group, partition = place
    committed = None if value is None else CommittedOffset(value, 1, "", 5, -1, bytes(16))
    return offset_record(group, "t", partition, committed)


def batch_of(step: Step, at: int, codec: Compression) -> bytearray:
    kind, what, producer = step
    if kind == "end":
        batch = marker_batch(Marker(producer.producer_id, producer.producer_epoch, what, 1, new_protocol=True), 0)
    else:
        one = record_of(what, None if kind == "remove" else at)
        others: dict[str, Any] = {}
        if kind == "pending":
            others = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
            others["transactional"] = True
        batch = build_batch([Record(0, 1, one.key, one.value, ())], compression=codec, **others)
    stamp(batch, 0, at, 1)
    return batch


def replay_live(shard: GroupShard, step: Step, at: int) -> None:
    kind, what, producer = step
    shard.begin_batch(at)
    if kind == "end":
        shard.end_transaction(producer, commit=what)
    elif kind == "pending":
        shard.replay_pending(producer, [record_of(what, at)])
    else:
        shard.replay(*record_of(what, None if kind == "remove" else at))


def replay_log(shard: GroupShard, batches: list[bytearray], begin: int) -> None:
    """As a load does, with a chunk for each compressed batch."""
    data, at, offset = b"".join(batches[begin:]), 0, begin
    until = len(batches)
    while offset < until:
        reached = at_once(replay_chunk(shard, data, at, offset, until, LoadLimits()))
        offset, at = reached.next_offset, reached.compressed_at
        assert at < 0 or offset < until
        if at >= 0:
            header = read_header(data, at)
            inflate(shard, data, at)
            offset, at = header.next_offset, at + header.size


def inflate(shard: GroupShard, data: bytes, at: int) -> None:
    with memoryview(data) as view:
        header, records = inflate_records(view, at, read_header(data, at).size, inflated_bytes_max=1 << 20)
    at_once(replay_records(shard, header, records, 0, len(records), LoadLimits()))


def state_of(shard: GroupShard) -> list[tuple[int | None, bool]]:
    found = []
    for group, partition in PLACES:
        offset = shard.fetch_offset(group, "t", partition)
        unstable = shard.fetch_offset(group, "t", partition, stable=True) is UNSTABLE
        found.append((None if offset is None else offset.offset, unstable))
    return found


ALL = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@ALL
@given(st.lists(STEPS, max_size=30), st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_a_shard_live_and_loaded_shows_what_counts(steps: list[Step], codec: Compression) -> None:
    model, live, loaded = Model(), new_shard(), new_shard()
    for at, step in enumerate(steps):
        kind, what, producer = step
        replay_live(live, step, at)
        if kind == "end":
            model.end(producer, commit=what)
        elif kind == "pending":
            model.pending(what, at, at, producer)
        else:
            model.plain(what, at, None if kind == "remove" else at)
        assert state_of(live) == [(model.offset(place), model.is_unstable(place)) for place in PLACES]
    replay_log(loaded, [batch_of(step, at, codec) for at, step in enumerate(steps)], 0)
    assert state_of(loaded) == state_of(live)


@ALL
@given(st.lists(STEPS, max_size=30), st.data())
def test_a_snapshot_of_a_working_shard_and_the_log_behind_it_rebuild_the_shard(
    steps: list[Step], data: st.DataObject
) -> None:
    """The shard goes on between the parts of its snapshot; the log is replayed from where the snapshot was begun, or
    from before that."""
    live, restored = new_shard(), new_shard()
    packed_at = data.draw(st.integers(0, len(steps)))
    for at, step in enumerate(steps[:packed_at]):
        replay_live(live, step, at)
    parts, done, at = live.pack(), False, packed_at
    while not done:
        for _ in range(data.draw(st.integers(0, 3))):
            if at < len(steps):
                replay_live(live, steps[at], at)
                at += 1
        part = next(parts, None)
        done = part is None
        for run in read_runs(part[0]) if part is not None else ():
            restored.unpack(run)
    for late in range(at, len(steps)):
        replay_live(live, steps[late], late)
    begin = data.draw(st.integers(0, packed_at))
    replay_log(restored, [batch_of(step, number, Compression.NONE) for number, step in enumerate(steps)], begin)
    assert state_of(restored) == state_of(live)


def test_a_load_applies_again_what_a_marker_behind_the_snapshots_begin_has_decided() -> None:
    """The snapshot knows that the offset counts, because another one of that place is still pending."""
    steps: list[Step] = [
        ("commit", ("h", 0), False),
        ("pending", ("h", 0), ONE),
        ("pending", ("h", 0), TWO),
        ("end", True, ONE),
    ]
    live, restored = new_shard(), new_shard()
    for at, step in enumerate(steps):
        replay_live(live, step, at)
    for part, _ in live.pack():
        for run in read_runs(part):
            restored.unpack(run)
    replay_log(restored, [batch_of(step, number, Compression.NONE) for number, step in enumerate(steps)], 0)
    assert state_of(restored) == state_of(live) == [(None, False), (None, False), (1, True)]


def test_a_load_from_before_the_snapshot_passes_an_earlier_transaction_of_the_same_producer() -> None:
    steps: list[Step] = [
        ("commit", ("g", 0), False),
        ("pending", ("g", 0), ONE),
        ("end", True, ONE),
        ("pending", ("g", 0), ONE),
    ]
    live, restored = new_shard(), new_shard()
    for at, step in enumerate(steps):
        replay_live(live, step, at)
    for part, _ in live.pack():
        for run in read_runs(part):
            restored.unpack(run)
    replay_log(restored, [batch_of(step, number, Compression.NONE) for number, step in enumerate(steps)], 0)
    assert state_of(restored) == state_of(live) == [(1, True), (None, False), (None, False)]


@ALL
@given(st.lists(STEPS, max_size=20), st.lists(STEPS.filter(lambda step: step[0] != "end"), min_size=1, max_size=5))
def test_what_is_taken_back_leaves_the_shard_as_it_was(steps: list[Step], refused: list[Step]) -> None:
    live, never = new_shard(), new_shard()
    for at, step in enumerate(steps):
        replay_live(live, step, at)
        replay_live(never, step, at)
    before = []
    for step in refused:
        at = len(steps)
        record = record_of(step[1], None if step[0] == "remove" else at)
        before.append(live.before_pending(step[2], record) if step[0] == "pending" else live.before(record))
        replay_live(live, step, at)
    live.undo(before[::-1], GroupDriver(QUICK).now)
    assert state_of(live) == state_of(never)
    for at, step in enumerate([("end", True, ONE), ("end", True, TWO)], len(steps)):
        replay_live(live, step, at)
        replay_live(never, step, at)
    assert state_of(live) == state_of(never)
