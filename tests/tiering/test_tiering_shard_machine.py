"""Two leaders, their crashes, lost replies and a shard that is reloaded from a compacted log: any interleaving."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tiering.refused_records import check_taken_back
from tests.tiering.segments import segment
from tests.tiering.test_tiering_swap import rewritten
from tiering.bucket.segment import SegmentState, TieredSegment
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import (
    Claim,
    ClaimReply,
    Describe,
    Description,
    Done,
    DropPartition,
    Empty,
    FinishCopy,
    FinishDelete,
    MoveLogStart,
    Refused,
    Reply,
    Request,
    StartCopy,
    StartDelete,
    Swap,
)
from tiering.shard.tier_records import TierRecord
from tiering.shard.tier_shard import TierShard

TOPIC_ID = bytes(16)
LEADERS = st.sampled_from((1, 2))
ERRORS = st.sampled_from((0, 0, 0, -2, -1, 1, 3))


@dataclass
class Leader:
    """A broker that believes what it was told last; `epoch` 0 leads nothing."""

    broker_id: int
    epoch: int = 0
    view: PartitionTier = field(default_factory=lambda: PartitionTier(TOPIC_ID, 0))
    uploading: TieredSegment | None = None


def viewed(description: Description) -> PartitionTier:
    tier = PartitionTier(TOPIC_ID, 0)
    tier.replay([description.partition] if description.partition else [])
    tier.replay(description.segments)
    assert not description.more
    return tier


class TierShardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = TierShard()
        self.log: list[TierRecord] = []
        self.offset = 0
        self.committed = 0
        self.leaders = {broker: Leader(broker) for broker in (1, 2)}
        self.epoch = 0
        self.uuids = 0
        self.objects: dict[str, TieredSegment] = {}
        self.generation = 0
        self.highest_end = 0
        self.highest_start = 0

    @initialize()
    def first_leader(self) -> None:
        self.elect(1, reply_lost=False)

    def ask(self, leader: Leader, request: Request, *, reply_lost: bool) -> Reply | None:
        """A reply that arrives tells of committed records only."""
        before = self.shard.partitions.get((TOPIC_ID, 0))
        claimed = before.record.leader_epoch if before is not None else -1
        decision = self.shard.decide(TOPIC_ID, 0, request, Moment(self.offset, self.offset))
        if decision.records and not isinstance(request, DropPartition):
            assert leader.epoch >= claimed, "a fenced leader changed something"
            assert isinstance(request, Claim) or leader.epoch == claimed
        check_taken_back(self.shard, decision.records)
        for record in decision.records:
            self.shard.replay(*record)
            self.log.append(record)
            self.offset += 1
        if reply_lost:
            return None
        self.committed = len(self.log)
        reply = decision.reply
        if isinstance(reply, Done) and leader.view.state_offset == reply.after:
            leader.view.replay(reply.records)
        elif isinstance(reply, Done):
            description = self.shard.decide(TOPIC_ID, 0, Describe(), Moment(0, 0)).reply
            assert isinstance(description, Description)
            leader.view.become(viewed(description))
        elif isinstance(reply, ClaimReply):
            leader.view = viewed(reply.description)
        elif isinstance(reply, Refused) and reply.error == "FENCED":
            assert leader.epoch < self.shard.partitions[TOPIC_ID, 0].record.leader_epoch
            leader.epoch = 0
        return reply

    # leaders -----------------------------------------------------------------------------------------------

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def elect(self, broker: int, reply_lost: bool) -> None:
        self.epoch += 1
        leader = self.leaders[broker]
        leader.epoch, leader.uploading = self.epoch, None
        self.ask(leader, Claim(self.epoch, broker, 1, "t"), reply_lost=reply_lost)

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def claim_again(self, broker: int, reply_lost: bool) -> None:
        leader = self.leaders[broker]
        if leader.epoch:
            self.ask(leader, Claim(leader.epoch, broker, 1, "t"), reply_lost=reply_lost)

    @rule(broker=LEADERS, error=ERRORS, size=st.integers(1, 4), reply_lost=st.booleans())
    def start_copy(self, broker: int, error: int, size: int, reply_lost: bool) -> None:
        """`error`: a leader that is wrong about where the tier ends."""
        leader = self.leaders[broker]
        base = max(leader.view.tier_end_offset + error, 0)
        if not leader.epoch:
            return
        self.uuids += 1
        copy = segment(
            base,
            base + size,
            self.uuids,
            state=SegmentState.COPY_STARTED,
            leader_epoch=leader.epoch,
            broker_id=broker,
            epochs=[(leader.epoch, base)],
        )
        reply = self.ask(leader, StartCopy(leader.epoch, 1, copy), reply_lost=reply_lost)
        if isinstance(reply, Done):
            leader.uploading = copy

    @rule(broker=LEADERS)
    def upload(self, broker: int) -> None:
        """Also by a leader that is deposed and does not know it."""
        copy = self.leaders[broker].uploading
        if copy is not None:
            self.objects[copy.uuid] = copy

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def finish_copy(self, broker: int, reply_lost: bool) -> None:
        leader = self.leaders[broker]
        copy = leader.uploading
        if copy is None or copy.uuid not in self.objects or not leader.epoch:
            return
        finished = segment(
            copy.base_offset,
            copy.end_offset,
            int(copy.uuid, 16),
            leader_epoch=copy.leader_epoch,
            broker_id=broker,
            epochs=copy.epochs,
        )
        self.ask(leader, FinishCopy(leader.epoch, 1, finished), reply_lost=reply_lost)

    @rule(broker=LEADERS, error=ERRORS, size=st.integers(1, 4))
    def copy_without_trouble(self, broker: int, error: int, size: int) -> None:
        self.start_copy(broker, error, size, False)
        self.upload(broker)
        self.finish_copy(broker, False)

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def give_up_copies(self, broker: int, reply_lost: bool) -> None:
        leader = self.leaders[broker]
        copies = [copy.id for copy in leader.view.copying()]
        if leader.epoch and copies:
            reply = self.ask(leader, StartDelete(leader.epoch, 1, copies), reply_lost=reply_lost)
            if isinstance(reply, Done):
                leader.uploading = None

    @rule(broker=LEADERS, by=st.integers(0, 6), reply_lost=st.booleans())
    def move_log_start(self, broker: int, by: int, reply_lost: bool) -> None:
        leader = self.leaders[broker]
        if leader.epoch:
            offset = min(leader.view.log_start_offset + by, leader.view.tier_end_offset)
            self.ask(leader, MoveLogStart(leader.epoch, 1, offset, "retention"), reply_lost=reply_lost)

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def start_delete(self, broker: int, reply_lost: bool) -> None:
        leader = self.leaders[broker]
        below = [found.id for found in leader.view.segments_below_log_start()]
        if leader.epoch and below:
            self.ask(leader, StartDelete(leader.epoch, 1, below), reply_lost=reply_lost)

    @rule(broker=LEADERS, at=st.integers(0, 20), begun=st.booleans())
    def delete_what_is_still_needed(self, broker: int, at: int, begun: bool) -> None:
        """A leader that is wrong about what may go: refused, unless it may."""
        leader = self.leaders[broker]
        every = leader.view.ids(100)
        if leader.epoch and every:
            chosen = [every[at % len(every)]]
            request = StartDelete(leader.epoch, 1, chosen) if begun else FinishDelete(leader.epoch, 1, chosen)
            self.ask(leader, request, reply_lost=False)

    @rule(broker=LEADERS, reply_lost=st.booleans())
    def finish_delete(self, broker: int, reply_lost: bool) -> None:
        """The object goes as soon as this leader knows that its deletion began, fenced or not."""
        leader = self.leaders[broker]
        deleting = leader.view.deleting()
        for gone in deleting:
            self.objects.pop(gone.uuid, None)
        if leader.epoch and deleting:
            ids = [gone.id for gone in deleting]
            self.ask(leader, FinishDelete(leader.epoch, 1, ids), reply_lost=reply_lost)

    @rule(broker=LEADERS, at=st.integers(0, 20), count=st.integers(1, 3), reply_lost=st.booleans())
    def swap(self, broker: int, at: int, count: int, reply_lost: bool) -> None:
        """A job's segments for a few in a row, of a leader that may be wrong about what there is."""
        leader = self.leaders[broker]
        every = list(leader.view.segments(0))
        if not leader.epoch or not every:
            return
        inputs = every[at % len(every) :][:count]
        self.uuids += 1
        output = rewritten(inputs, self.uuids)
        self.objects[output.uuid] = output
        request = Swap(leader.epoch, 1, "p", [one.id for one in inputs], [output])
        reply = self.ask(leader, request, reply_lost=reply_lost)
        if isinstance(reply, Refused):
            del self.objects[output.uuid]

    @rule(broker=LEADERS, by=st.integers(-9, 1), reply_lost=st.booleans())
    def empty(self, broker: int, by: int, reply_lost: bool) -> None:
        """Tiering was disabled."""
        leader = self.leaders[broker]
        if leader.epoch:
            generation = leader.view.generation + 1
            start = max(leader.view.tier_end_offset + by, 0)
            self.ask(leader, Empty(leader.epoch, 1, generation, start), reply_lost=reply_lost)

    # the shard's host --------------------------------------------------------------------------------------

    @precondition(lambda self: self.committed < len(self.log))
    @rule(kept=st.integers(0, 1 << 30))
    def host_dies(self, kept: int) -> None:
        """What was committed stays; of the rest any beginning may have reached the next host."""
        upto = self.committed + kept % (len(self.log) - self.committed + 1)
        del self.log[upto:]
        self.reload()

    @rule(at=st.integers(0, 1 << 30), keep_tombstones=st.booleans())
    def compact(self, at: int, keep_tombstones: bool) -> None:
        dirty_from = at % (self.committed + 1)
        newest = {record.key: number for number, record in enumerate(self.log[:dirty_from])}
        clean = [record for number, record in enumerate(self.log[:dirty_from]) if newest[record.key] == number]
        if not keep_tombstones:
            clean = [record for record in clean if record.value is not None]
        self.committed -= dirty_from - len(clean)
        self.log[:dirty_from] = clean
        live = list(self.shard.records())
        self.reload()
        assert list(self.shard.records()) == live

    def reload(self) -> None:
        self.shard = TierShard()
        for record in self.log:
            self.shard.replay(*record)
        self.committed = len(self.log)

    # what holds always -------------------------------------------------------------------------------------

    @invariant()
    def no_overlap_no_hole_nothing_lost(self) -> None:
        tier = self.shard.partitions.get((TOPIC_ID, 0))
        if tier is None:
            return
        end = None
        for base, segment_end, _, _ in tier.sizes():
            assert end is None or base == end or end < base <= tier.log_start_offset
            end = segment_end
        for found in tier.segments(0):
            assert found.uuid in self.objects, "a finished segment has its object"
        for offset in range(tier.log_start_offset, tier.tier_end_offset):
            held = tier.find(offset)
            assert held is not None
            assert held.base_offset <= offset < held.end_offset

    @invariant()
    def committed_ends_never_go_back(self) -> None:
        shard = TierShard()
        for record in self.log[: self.committed]:
            shard.replay(*record)
        tier = shard.partitions.get((TOPIC_ID, 0))
        if tier is not None:
            assert tier.generation >= self.generation
            if tier.generation > self.generation:
                self.generation, self.highest_end = tier.generation, self.highest_start
            assert tier.tier_end_offset >= self.highest_end
            assert tier.log_start_offset >= self.highest_start
            self.highest_end, self.highest_start = tier.tier_end_offset, tier.log_start_offset

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        shard = TierShard()
        for record in self.log:
            shard.replay(*record)
        assert list(shard.records()) == list(self.shard.records())

    @invariant()
    def the_claimed_leaders_view_is_the_state(self) -> None:
        tier = self.shard.partitions.get((TOPIC_ID, 0))
        for leader in self.leaders.values():
            claimed = tier is not None and tier.record.leader_epoch == leader.epoch == leader.view.record.leader_epoch
            if claimed and tier is not None and leader.view.state_offset == tier.state_offset:
                assert leader.view.to_records() == tier.to_records()


TestTierShardMachine = TierShardMachine.TestCase
TestTierShardMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
