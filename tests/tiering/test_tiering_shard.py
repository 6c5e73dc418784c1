"""The tier shard: who may change what, and what its records bring back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.tiering.refused_records import check_taken_back
from tests.tiering.segments import segment, uuid_of
from tiering.bucket.segment import SegmentId, SegmentState
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import (
    Adopt,
    Claim,
    ClaimReply,
    Describe,
    Description,
    Done,
    DropPartition,
    Empty,
    FinishCopy,
    FinishDelete,
    ForgetPartition,
    MoveLogStart,
    Refused,
    Reply,
    Request,
    StartCopy,
    StartDelete,
    decode_reply,
    decode_request,
    encode,
)
from tiering.shard.tier_records import TierRecord, decode_key
from tiering.shard.tier_shard import TierShard

TOPIC_ID = bytes(range(16))
STARTED, FINISHED = SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED


class ShardDriver:
    """Appends what the shard decides to a log, as its host does; messages go through their bytes."""

    def __init__(self) -> None:
        self.shard = TierShard()
        self.log: list[TierRecord] = []
        self.now_ms = 1_000

    def ask(self, request: Request, partition: int = 0) -> Reply:
        moment = Moment(self.now_ms, len(self.log))
        decision = self.shard.decide(TOPIC_ID, partition, decode_request(encode(request)), moment)
        check_taken_back(self.shard, decision.records)
        for record in decision.records:
            self.shard.replay(*record)
            self.log.append(record)
        return decode_reply(encode(decision.reply))

    def done(self, request: Request) -> Done:
        reply = self.ask(request)
        assert isinstance(reply, Done), reply
        return reply

    def refused(self, request: Request) -> str:
        before = len(self.log)
        reply = self.ask(request)
        assert isinstance(reply, Refused), reply
        assert len(self.log) == before
        return reply.error

    def claim(self, leader_epoch: int, broker_id: int = 1, broker_epoch: int = 10) -> PartitionTier:
        reply = self.ask(Claim(leader_epoch, broker_id, broker_epoch, "flights", metadata_offset=leader_epoch))
        assert isinstance(reply, ClaimReply), reply
        return self.view(reply.description)

    def view(self, description: Description) -> PartitionTier:
        tier = PartitionTier(TOPIC_ID, 0)
        tier.replay([description.partition] if description.partition else [])
        tier.replay(description.segments)
        while description.more:
            last = decode(description.segments[-1][0])
            reply = self.ask(Describe(last))
            assert isinstance(reply, Description)
            description = reply
            tier.replay(description.segments)
        return tier

    def copy(self, base: int, end: int, number: int | None = None, leader_epoch: int = 1, broker_id: int = 1) -> None:
        started = segment(base, end, number, state=STARTED, leader_epoch=leader_epoch, broker_id=broker_id)
        finished = segment(base, end, number, state=FINISHED, leader_epoch=leader_epoch, broker_id=broker_id)
        self.done(StartCopy(leader_epoch, 10, started))
        self.done(FinishCopy(leader_epoch, 10, finished))

    @property
    def tier(self) -> PartitionTier:
        return self.shard.partitions[TOPIC_ID, 0]


def decode(key: bytes) -> SegmentId:
    decoded = decode_key(key)
    assert decoded is not None
    assert decoded.segment is not None
    return decoded.segment


def contents(tier: PartitionTier) -> list[TierRecord]:
    return tier.to_records()


def replayed(log: Sequence[TierRecord]) -> TierShard:
    shard = TierShard()
    for record in log:
        shard.replay(*record)
    return shard


def compacted(log: Sequence[TierRecord], dirty_from: int, *, keep_tombstones: bool) -> list[TierRecord]:
    """The newest record of each key below `dirty_from`, and all behind it."""
    newest = {record.key: at for at, record in enumerate(log[:dirty_from])}
    kept = [record for at, record in enumerate(log[:dirty_from]) if newest[record.key] == at]
    return [record for record in kept if keep_tombstones or record.value is not None] + list(log[dirty_from:])


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver()


def test_a_claim_shuts_out_lower_epochs_and_other_brokers(driver: ShardDriver) -> None:
    driver.claim(5, broker_id=1, broker_epoch=10)
    assert driver.refused(Claim(4, 1, 10, "flights")) == "FENCED"
    assert driver.refused(Claim(5, 2, 11, "flights")) == "FENCED"
    assert driver.refused(Claim(5, 1, 9, "flights")) == "FENCED"
    assert driver.refused(MoveLogStart(4, 10, 3, "retention")) == "FENCED"
    assert driver.refused(MoveLogStart(5, 11, 3, "retention")) == "NOT_CLAIMED"
    before = len(driver.log)
    driver.claim(5, broker_id=1, broker_epoch=10)
    assert len(driver.log) == before, "a repeated claim changes nothing"
    driver.claim(5, broker_id=1, broker_epoch=11)
    assert driver.refused(MoveLogStart(5, 10, 3, "retention")) == "FENCED"


def test_a_claim_answers_with_all_segments(driver: ShardDriver) -> None:
    driver.claim(1)
    for base in range(0, 30, 10):
        driver.copy(base, base + 10)
    driver.done(MoveLogStart(1, 10, 12, "delete-records"))
    view = driver.claim(2, broker_id=2, broker_epoch=10)
    assert contents(view) == contents(driver.tier)
    assert [found.base_offset for found in view.segments()] == [10, 20]
    assert (view.log_start_offset, view.tier_end_offset, view.record.log_start_cause) == (12, 30, "delete-records")
    assert view.state_offset == len(driver.log) - 1


def test_a_long_claim_goes_on_in_pages() -> None:
    driver = ShardDriver()
    driver.claim(1)
    for base in range(2_500):
        driver.copy(base, base + 1)
    assert contents(driver.claim(2)) == contents(driver.tier)


def test_a_new_claim_gives_up_the_copies_of_the_last(driver: ShardDriver) -> None:
    driver.claim(1)
    driver.done(StartCopy(1, 10, segment(0, 10, state=STARTED)))
    view = driver.claim(2, broker_id=2)
    assert [found.state for found in view.deleting()] == [SegmentState.DELETE_STARTED]
    assert driver.refused(FinishCopy(1, 10, segment(0, 10))) == "FENCED"
    assert driver.refused(FinishCopy(2, 10, segment(0, 10))) == "ILLEGAL_TRANSITION"
    driver.copy(0, 15, number=7, leader_epoch=2, broker_id=2)
    assert driver.tier.tier_end_offset == 15


def test_a_copy_begins_at_the_tiers_end(driver: ShardDriver) -> None:
    driver.claim(1)
    driver.copy(0, 10)
    for base in (0, 5, 9, 11):
        assert driver.refused(StartCopy(1, 10, segment(base, 20, 99, state=STARTED))) == "NOT_AT_TIER_END"
    driver.copy(10, 20)
    driver.done(MoveLogStart(1, 10, 50, "retention"))
    assert driver.refused(StartCopy(1, 10, segment(51, 60, state=STARTED))) == "NOT_AT_TIER_END"
    driver.copy(40, 60)
    assert driver.tier.find(50) is not None
    assert driver.tier.find(49) is None


def test_one_copy_at_a_time(driver: ShardDriver) -> None:
    driver.claim(1)
    started = segment(0, 10, state=STARTED)
    assert driver.done(StartCopy(1, 10, started)).records == driver.done(StartCopy(1, 10, started)).records[1:]
    assert driver.refused(StartCopy(1, 10, segment(0, 10, 5, state=STARTED))) == "ILLEGAL_TRANSITION"
    driver.done(StartDelete(1, 10, [started.id]))
    assert driver.refused(StartCopy(1, 10, started)) == "ILLEGAL_TRANSITION", "a uuid serves once"
    driver.copy(0, 10, number=5)


def test_a_copy_continues_the_lineage(driver: ShardDriver) -> None:
    driver.claim(5)
    first = [(2, 0), (4, 6)]
    driver.done(StartCopy(5, 10, segment(0, 10, state=STARTED, epochs=first, leader_epoch=5)))
    driver.done(FinishCopy(5, 10, segment(0, 10, epochs=first, leader_epoch=5)))
    for wrong in ([(3, 10)], [(4, 5)], [(5, 9)]):
        request = StartCopy(5, 10, segment(10, 20, state=STARTED, epochs=wrong, leader_epoch=5))
        assert driver.refused(request) == "LINEAGE"
    assert (
        driver.refused(StartCopy(5, 10, segment(10, 20, state=STARTED, epochs=[(6, 10)], leader_epoch=5))) == "INVALID"
    )
    driver.done(StartCopy(5, 10, segment(10, 20, state=STARTED, epochs=[(4, 6), (5, 12)], leader_epoch=5)))


def test_only_what_the_log_start_has_passed_is_deleted(driver: ShardDriver) -> None:
    driver.claim(1)
    driver.copy(0, 10)
    driver.copy(10, 20)
    ids = [SegmentId(0, uuid_of(0)), SegmentId(10, uuid_of(10))]
    driver.done(MoveLogStart(1, 10, 19, "retention"))
    assert driver.refused(StartDelete(1, 10, ids)) == "ILLEGAL_TRANSITION"
    assert driver.refused(FinishDelete(1, 10, ids[:1])) == "ILLEGAL_TRANSITION"
    driver.now_ms = 9_000
    driver.done(StartDelete(1, 10, ids[:1]))
    driver.now_ms = 10_000
    again = driver.done(StartDelete(1, 10, ids[:1]))
    assert driver.tier.deleting()[0].changed_ms == 9_000, "the delay runs from the first"
    assert len(again.records) == 2
    driver.done(FinishDelete(1, 10, ids[:1]))
    driver.done(FinishDelete(1, 10, ids[:1]))
    driver.done(MoveLogStart(1, 10, 20, "retention"))
    driver.done(StartDelete(1, 10, ids[1:]))
    driver.done(FinishDelete(1, 10, ids[1:]))
    assert driver.tier.finished_count == 0
    assert driver.tier.tier_end_offset == 20, "an emptied tier remembers its end"
    assert replayed(driver.log).partitions[TOPIC_ID, 0].tier_end_offset == 20
    driver.done(MoveLogStart(1, 10, 3, "retention"))
    assert driver.tier.log_start_offset == 20


@pytest.mark.parametrize(
    "request_",
    [
        StartCopy(1, 10, segment(0, 10, state=FINISHED)),
        StartCopy(1, 10, segment(10, 10, state=STARTED)),
        StartCopy(1, 10, segment(0, 10, state=STARTED, epochs=[])),
        StartCopy(1, 10, segment(0, 10, state=STARTED, broker_id=2)),
        StartCopy(1, 10, segment(0, 10, state=STARTED, epochs=[(1, 1)])),
        FinishCopy(1, 10, segment(0, 10, state=STARTED)),
        StartDelete(1, 10, [SegmentId(at, uuid_of(at)) for at in range(1_001)]),
    ],
)
def test_nonsense_is_refused(driver: ShardDriver, request_: Request) -> None:
    driver.claim(1)
    assert driver.refused(request_) == "INVALID"


def test_adoption_takes_a_manifest_in_pieces(driver: ShardDriver) -> None:
    driver.claim(7)
    pieces = [[segment(0, 10), segment(10, 20)], [segment(20, 30)]]
    driver.done(Adopt(7, 10, 3, 5, pieces[0], False))
    assert driver.refused(StartCopy(7, 10, segment(20, 30, 9, state=STARTED, leader_epoch=7))) == "ILLEGAL_TRANSITION"
    driver.claim(8, broker_id=2)
    driver.done(Adopt(8, 10, 3, 5, pieces[0], False))
    driver.done(Adopt(8, 10, 3, 5, pieces[1], True))
    assert [found.base_offset for found in driver.tier.segments()] == [0, 10, 20]
    assert driver.tier.log_start_offset == 5
    assert next(driver.tier.segments()).changed_ms == 5, "adopted as the manifest says"
    before = len(driver.log)
    driver.done(Adopt(8, 10, 3, 5, pieces[1], True))
    assert len(driver.log) == before
    assert driver.refused(Adopt(8, 10, 4, 5, [], True)) == "ILLEGAL_TRANSITION"
    driver.copy(30, 40, leader_epoch=8, broker_id=2)


def test_adoption_refuses_holes_and_a_tier_that_began_without_it(driver: ShardDriver) -> None:
    driver.claim(7)
    assert driver.refused(Adopt(7, 10, 3, 0, [segment(0, 10), segment(11, 20)], True)) == "NOT_AT_TIER_END"
    assert driver.refused(Adopt(7, 10, 3, 0, [segment(0, 10), segment(9, 20)], True)) == "NOT_AT_TIER_END"
    driver.copy(0, 10, leader_epoch=7)
    assert driver.refused(Adopt(7, 10, 3, 0, [segment(10, 20)], True)) == "ILLEGAL_TRANSITION"


def test_half_an_adoption_does_not_look_whole(driver: ShardDriver) -> None:
    driver.claim(7)
    begun = len(driver.log)
    driver.done(Adopt(7, 10, 3, 0, [segment(0, 10), segment(10, 20)], True))
    for upto in range(begun + 1, len(driver.log)):
        partial = replayed(driver.log[:upto]).partitions[TOPIC_ID, 0]
        assert partial.record.adopting


def test_a_deleted_topic_is_dropped_kept_and_forgotten(driver: ShardDriver) -> None:
    driver.claim(1)  # at metadata offset 1
    driver.copy(0, 10)
    driver.done(StartCopy(1, 10, segment(10, 20, state=STARTED)))
    assert driver.refused(ForgetPartition()) == "ILLEGAL_TRANSITION"
    assert driver.refused(DropPartition(0)) == "INVALID", "the leader has seen more of the metadata"
    driver.done(DropPartition(5))
    driver.now_ms += 5
    driver.done(DropPartition(6))
    assert driver.tier.record.dropped_ms == 1_000
    for request in (Claim(2, 2, 10, "flights"), FinishCopy(1, 10, segment(10, 20)), MoveLogStart(1, 10, 3, "x")):
        assert driver.refused(request) == "DROPPED"
    assert driver.tier.finished_count == 1
    while driver.done(ForgetPartition()).records:
        pass
    assert driver.shard.partitions == {}
    assert replayed(driver.log).partitions == {}


def test_records_that_nobody_knows_are_left_alone() -> None:
    shard = TierShard()
    shard.replay(b"\x07\x01rest", b"x")
    shard.replay(b"\x00\x63rest", b"x")
    with pytest.raises(ValueError, match="at least two"):
        shard.replay(b"\x00", b"x")
    with pytest.raises(ValueError, match="bytes"):
        shard.replay(b"\x00\x01short", b"x")
    assert list(shard.records()) == []


def test_compaction_keeps_the_state(driver: ShardDriver) -> None:
    rng = random.Random(4)
    driver.claim(1)
    for base in range(0, 100, 10):
        driver.copy(base, base + 10)
        if base >= 30:
            driver.done(MoveLogStart(1, 10, base - 20, "retention"))
            below = [found.id for found in driver.tier.segments_below_log_start()]
            driver.done(StartDelete(1, 10, below))
            driver.done(FinishDelete(1, 10, below[:-1]))
    for keep_tombstones in (True, False):
        short = compacted(driver.log, rng.randrange(len(driver.log)), keep_tombstones=keep_tombstones)
        assert list(replayed(short).records()) == list(driver.shard.records())


# tiering is disabled ---------------------------------------------------------------------------------------


def test_an_emptied_tier_begins_anew_at_its_log_start(driver: ShardDriver) -> None:
    driver.claim(1)
    for base in (0, 10, 20):
        driver.copy(base, base + 10)
    driver.now_ms = 5_000
    done = driver.done(Empty(1, 10, 1, 15))
    tier = driver.tier
    assert len(done.records) == 1, "however many segments there are"
    assert (tier.log_start_offset, tier.tier_end_offset, tier.generation) == (15, 15, 1)
    assert (list(tier.segments(0)), tier.log_bytes, tier.find(15)) == ([], 0, None)
    assert [(one.base_offset, one.state, one.changed_ms) for one in tier.deleting()] == [
        (base, SegmentState.DELETE_STARTED, 5_000) for base in (0, 10, 20)
    ]
    assert {tier.state_offset_of(one.id) for one in tier.deleting()} == {tier.record.emptied_offset}
    assert driver.refused(StartCopy(1, 10, segment(30, 40, state=STARTED))) == "NOT_AT_TIER_END"
    driver.copy(15, 25, number=99)
    driver.done(FinishDelete(1, 10, [one.id for one in tier.deleting()]))
    assert [one.base_offset for one in tier.segments(0)] == [15]
    assert not tier.deleting()


def test_a_tier_is_emptied_once_per_generation(driver: ShardDriver) -> None:
    driver.claim(1)
    driver.copy(0, 10)
    driver.done(Empty(1, 10, 2, 5))
    driver.copy(5, 12, number=99)
    assert driver.done(Empty(1, 10, 2, 9)).tier_state_offset == driver.tier.state_offset
    assert driver.done(Empty(1, 10, 1, 12)).records
    assert (driver.tier.log_start_offset, driver.tier.tier_end_offset) == (5, 12)
    driver.claim(2)
    assert driver.refused(Empty(1, 10, 3, 12)) == "FENCED"


def test_a_copy_that_is_under_way_does_not_outlive_the_emptying(driver: ShardDriver) -> None:
    driver.claim(1)
    driver.copy(0, 10)
    driver.done(StartCopy(1, 10, segment(10, 20, state=STARTED)))
    driver.done(Empty(1, 10, 1, 10))
    assert driver.refused(FinishCopy(1, 10, segment(10, 20))) == "ILLEGAL_TRANSITION"
    assert {one.base_offset for one in driver.tier.deleting()} == {0, 10}


def test_segments_of_before_do_not_come_back_with_a_compacted_log(driver: ShardDriver) -> None:
    """The partition's own record moves behind those of segments of either generation."""
    driver.claim(1)
    for base in (0, 10):
        driver.copy(base, base + 10)
    driver.done(Empty(1, 10, 1, 10))
    driver.copy(10, 25, number=99)
    driver.done(MoveLogStart(1, 10, 12, "retention"))
    for upto in range(len(driver.log) + 1):
        again = replayed(compacted(driver.log, upto, keep_tombstones=False)).partitions[TOPIC_ID, 0]
        assert contents(again) == contents(driver.tier)
        assert [one.uuid for one in again.segments(0)] == [uuid_of(99)]


def test_what_is_adopted_is_of_the_generation_that_its_leader_knows(driver: ShardDriver) -> None:
    driver.claim(7)
    driver.done(Adopt(7, 10, 3, 0, [segment(0, 10)], True, generation=2))
    assert (driver.tier.generation, driver.tier.tier_end_offset) == (2, 10)
    assert replayed(driver.log).partitions[TOPIC_ID, 0].tier_end_offset == 10
