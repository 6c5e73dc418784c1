"""Mistakes to plant into the product, each for the length of one run: the simulator has to catch every one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from broker.audit import topic_host
from broker.coordination import placement
from broker.coordination.groups import coordinator
from broker.coordination.hosted_shard import HostedShard
from broker.handlers.fetch import FetchHandler
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.partitions.replica_set import ReplicaSet
from broker.quotas.meters import Meter
from broker.quotas.windows import UseWindow, WindowForm
from broker.security.usage import ThrottleReason
from common.decision import Decision
from common.pacing import Work
from kraft.balancer import cell_relief
from kraft.controller import (
    balance_cells,
    balance_duties,
    balance_levelling,
    broker_health,
    broker_removal,
    brokers,
    elections,
    health_duties,
    liveness,
    partitions,
    piecework,
    reassignment,
)
from kraft.controller.balance_duties import BalanceDuties
from kraft.controller.balance_moves import MoveBatch, PlannedMove
from kraft.controller.balance_status import BalanceStatus, CellsLook
from kraft.controller.balance_steps import BalanceStep
from kraft.controller.piecework import Piecework
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.usage_rates import BrokerUse, Rates, Verdict
from kraft.health import judgement
from kraft.image.key_ranges import Keeping, keeping, range_for
from kraft.image.metadata import MetadataImage
from kraft.quorum.node import RaftNode
from kraft.quotas.split_quota import SplitQuota
from kraft.quotas.tenant_quotas import RESOURCES, Resource
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord
from storage.audit.audit_journal import AuditJournal
from storage.recovery import recovery
from tests.sim.tier_bugs import PAGE_BUGS, TIER_BUGS, UNDECIDED_BUGS
from tests.sim.transaction_bugs import TRANSACTION_BUGS

Replace = Callable[[Any, str, object], None]


def truncate_to_own_high_watermark(replace: Replace) -> None:
    """A follower cuts its log to what it knows to be committed, which its leader knows better."""
    right = Partition.become_follower

    def become_follower(self: Partition, image: Any) -> bool:
        changed = right(self, image)
        if changed and self.log.log_end_offset > self.high_watermark:
            self.log.truncate_to(self.high_watermark)
        return changed

    replace(Partition, "become_follower", become_follower)


def elect_outside_isr_and_elr(replace: Replace) -> None:
    """Rather any leader than none."""
    right = elections._elect

    def elect(partition: Any, target: Any, replicas: Any, isr: Any, elr: Any) -> Any:
        leader, cause = right(partition, target, replicas, isr, elr)
        if leader == NO_LEADER:
            for replica in replicas:
                if target.acceptable(replica):
                    return replica, Cause.UNCLEAN_ELECTION
        return leader, cause

    replace(elections, "_elect", elect)


def acknowledge_before_high_watermark(replace: Replace) -> None:
    replace(Partition, "when_committed", lambda self, offset, waiter: False)


def commit_under_min_insync_replicas(replace: Replace) -> None:
    """The high watermark advances whatever the size of the ISR."""
    right = ReplicaSet.high_watermark

    def high_watermark(self: ReplicaSet, own_end: int, now: float, lag_max_s: float) -> int:
        is_starved, self.is_starved = self.is_starved, False
        try:
            return right(self, own_end, now, lag_max_s)
        finally:
            self.is_starved = is_starved

    replace(ReplicaSet, "high_watermark", high_watermark)


def skip_epoch_check(replace: Replace) -> None:
    """Fetches of any epoch and lineage are served, and count."""
    for owner in Partition.__mro__:
        for name, answer in (("check_epoch", None), ("diverging_epoch", None)):
            if name in vars(owner):
                replace(owner, name, lambda self, *epochs, answer=answer: answer)


def answer_duplicates_before_high_watermark(replace: Replace) -> None:
    append, wait = Partition.append_produced, Partition.when_committed
    duplicates: dict[Partition, int] = {}

    def append_produced(self: Partition, *arguments: Any) -> Any:
        appended = append(self, *arguments)
        if appended.duplicate:
            duplicates[self] = appended.next_offset
        return appended

    def when_committed(self: Partition, offset: int, waiter: Any) -> bool:
        return duplicates.pop(self, None) != offset and wait(self, offset, waiter)

    replace(Partition, "append_produced", append_produced)
    replace(Partition, "when_committed", when_committed)


def keep_unclean_replica(replace: Replace) -> None:
    """A broker that comes back from an unclean stop keeps its places in ISR and ELR."""
    right = elections.standing_of

    def standing_of(image: MetadataImage) -> elections.Standing:
        standing = right(image)
        kept = frozenset(broker.broker_id for broker in image.brokers.values() if broker.is_unclean)
        return structs.replace(standing, leaving=standing.leaving - kept, unclean=standing.unclean - kept)

    for module in (elections, broker_removal, piecework):
        replace(module, "standing_of", standing_of)


def forget_the_start_that_registered(replace: Replace) -> None:
    """A broker that dies before it has noted its new epoch counts as one that has lost records."""

    def continues(request: Any, existing: Any, start_id: bytes) -> bool:
        return bool(request.previous_broker_epoch == existing.epoch)

    replace(brokers, "_continues", continues)


def join_with_old_broker_epoch(replace: Replace) -> None:
    """A replica joins the ISR on what its leader knew of an earlier life of its broker."""
    replace(partitions, "_may_join", lambda image, partition, member, epoch, in_need: True)
    replace(HostedPartitions, "is_eligible", lambda self, node, broker_epoch, in_need: True)
    replace(FetchHandler, "_check_replica", lambda self, client, call: None)


def recover_last_segment_only(replace: Replace) -> None:
    replace(recovery, "first_to_scan", lambda base_offsets, recovery_point: max(len(base_offsets) - 1, 0))


def move_before_the_copy(replace: Replace) -> None:
    """A reassignment ends as soon as it begins, and its new replicas count as in sync."""

    def at_once(moving: Any, isr: Any, min_isr: int) -> Any:
        replicas = tuple(r for r in moving.replicas if r not in moving.removing)
        return reassignment.Completion(replicas, replicas)

    replace(reassignment, "_completion", at_once)


def act_before_the_audit(replace: Replace) -> None:
    """Logs are cut, and begin higher, while the event is still on its way to the device."""
    right = AuditJournal.permits

    def permits(self: AuditJournal, act: Any) -> bool:
        right(self, act)
        return True

    replace(AuditJournal, "permits", permits)


def forget_what_was_shipped(replace: Replace) -> None:
    """A new leader of the audit's topic takes every journal for a new one."""
    replace(topic_host, "last_positions", lambda partition: {})


def serve_groups_on_their_way(replace: Replace) -> None:
    """Whoever leads where a tenant's groups were goes on serving them while they are handed over."""

    def unfenced(topic: Any, tenant: Any, partition: int) -> Keeping:
        right = keeping(topic, tenant, partition)
        return Keeping.SERVED if right is Keeping.LEAVING else right

    replace(coordinator, "keeping", unfenced)
    replace(placement, "range_to_ask", range_for)


def show_offsets_of_a_lone_replica(replace: Replace) -> None:
    """A coordinator whose ISR is itself alone answers reads, whether or not the controllers still know it."""

    def is_fresh(self: HostedShard[Any]) -> bool:
        return self.partition.followers_fetched_within(self._limits.freshness_s)

    replace(HostedShard, "_is_fresh", is_fresh)


def stand_without_pre_vote(replace: Replace) -> None:
    """A voter that hears no leader raises its term and stands for election, as the library would have it."""
    replace(RaftNode, "_canvass_when_due", lambda self: None)


def unfence_before_the_last_piece(replace: Replace) -> None:
    """A broker may lead again while partitions list it from before it was lost."""
    for module in (brokers, liveness):
        replace(module, "is_listed", lambda image, broker_id: False)


def forget_removals_of_the_last_controller(replace: Replace) -> None:
    """The pieces that are left are known to the controller that began, and not read from the metadata."""
    became_active, removal = Piecework.became_active, Piecework._removal

    def forget(self: Any) -> None:
        self.forgotten = gone_in(self._driver.image)
        became_active(self)

    def remembered(self: Any, image: MetadataImage) -> Any:
        return Decision(0) if gone_in(image) <= self.forgotten else removal(self, image)

    def gone_in(image: MetadataImage) -> frozenset[tuple[int, int]]:
        gone = broker_removal.gone(elections.standing_of(image))
        return frozenset((broker, image.brokers[broker].epoch) for broker in gone if broker in image.brokers)

    replace(Piecework, "became_active", forget)
    replace(Piecework, "_removal", remembered)


def fence_in_one_go(replace: Replace) -> None:
    """All that a broker leaves is decided at once."""
    replace(broker_removal, "piece_of", lambda image, policy: broker_removal.WHOLE)


def put_two_aside(replace: Replace) -> None:
    """Each sick broker is put aside, however many there are."""

    def judge(brokers: Any, suspects: Any, well: Any) -> judgement.Judgement:
        sick = [suspect for suspect in suspects if suspect.is_sure and brokers[suspect.broker_id].is_fit]
        return judgement.Judgement(put_aside=sick[0] if sick else None)

    replace(health_duties, "judge", judge)


def put_aside_below_min_isr(replace: Replace) -> None:
    """A slow broker leaves every ISR that has another member."""

    def changes(image: MetadataImage, policy: Any, keys: Any) -> list[PartitionChangeRecord]:
        targets, records = elections.Targets(image, policy), []
        for topic_id, number in keys:
            topic = image.topics.by_id[topic_id]
            partition = topic.partitions[number]
            isr = tuple(r for r in partition.isr if not image.brokers[r].should_leave_isr) or partition.isr
            target = targets.of(topic, Cause.SLOWER_THAN_PEERS, isr=isr, leaders=frozenset(isr))
            records.append(elections.change_partition(partition, target))
        return [record for record in records if record is not None]

    def unendangered(image: MetadataImage, policy: Any, broker_id: int) -> Work[str]:
        yield 1
        return ""

    for module in (broker_health, piecework):
        replace(module, "changes_where_brokers_are_unfit", changes)
    replace(health_duties, "endangered", unendangered)


FLEET_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant
    for plant in (unfence_before_the_last_piece, forget_removals_of_the_last_controller, fence_in_one_go)
}
"""Found by `tests.sim.fleet_scenario`, which has thousands of partitions."""


def plan_that_undoes_itself(replace: Replace) -> None:
    """Where nothing is left to do, the last move is taken back."""
    right = balance_levelling.levelling

    def levelling(image: MetadataImage, inputs: Any, operation: Any) -> Any:
        step = yield from right(image, inputs, operation)
        done = [one for one in image.balance.moves.values() if one.operation == operation.id and one.ended_ms]
        if step.state is None or not done or image.partition(done[-1].topic_id, done[-1].partition) is None:
            return step
        last = done[-1]
        batch = MoveBatch(image, inputs.policy, operation, inputs.now_ms)
        topic = image.topics.by_id[last.topic_id]
        batch.begin(PlannedMove(topic, topic.partitions[last.partition], last.before, last.goal))
        return BalanceStep(batch.records(), begun=tuple(batch.moves))

    replace(balance_duties, "levelling", levelling)


def move_by_a_deposed_controller(replace: Replace) -> None:
    """A new controller commits what the last one had decided."""
    right, known = BalanceDuties.step, dict[str, MetadataImage]()

    def step(self: BalanceDuties, image: MetadataImage, subject: str) -> Any:
        before = known.get(subject)
        known[subject] = image
        if before is not None and before.epoch < image.epoch:
            image = before
        return (yield from right(self, image, subject))

    replace(BalanceDuties, "step", step)


BALANCE_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant for plant in (plan_that_undoes_itself, move_by_a_deposed_controller)
}
"""Found by `tests.sim.balance_scenario`."""


def relieve_a_cell_at_once(replace: Replace) -> None:
    """A moment's overload is enough."""
    right = balance_cells.looking_at_cells

    def looking(*given: Any) -> Any:
        look = yield from right(*given)
        overloads = tuple(structs.replace(one, is_due=True) for one in look.overloads)
        return CellsLook(overloads, look.now_s)

    replace(balance_duties, "looking_at_cells", looking)


def forget_that_a_tenant_has_left(replace: Replace) -> None:
    """A cell's load, which is a mean, still shows the tenant, and the next one leaves."""
    replace(BalanceStatus, "tenants_moved", lambda *_: None)


def overload_the_next_cell(replace: Replace) -> None:
    """A tenant goes where there is no room for it."""
    replace(cell_relief, "_with_room", lambda _tenant, cells: iter(cells.values()))


CELL_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant for plant in (relieve_a_cell_at_once, forget_that_a_tenant_has_left, overload_the_next_cell)
}
"""Found by `tests.sim.cells_scenario`."""


def lose_shares_at_a_failover(replace: Replace) -> None:
    """A controller that becomes active splits at once, and learns nothing of the shares that brokers act on."""

    def new_splits(self: QuotaCoordinator, _now: float) -> dict[Resource, SplitQuota]:
        return {resource: SplitQuota(self._rules) for resource in RESOURCES}

    replace(QuotaCoordinator, "is_keeping", lambda *_: False)
    replace(QuotaCoordinator, "_new_splits", new_splits)
    replace(SplitQuota, "confirmed", lambda *_: None)


def forget_the_mute(replace: Replace) -> None:
    """A share that changes forgets what its tenant has used, and so what its clients have to wait for."""
    right = Meter.limit

    def limit(self: Meter, now: float, reason: ThrottleReason, bound: float | None, **how: bool) -> None:
        self.window = UseWindow(WindowForm(11, 1.0))
        right(self, now, reason, bound, **how)

    replace(Meter, "limit", limit)


def count_a_report_twice(replace: Replace) -> None:
    """A report that comes again adds to what was counted."""
    right = BrokerUse.take

    def take(self: BrokerUse, image: MetadataImage, request: Any, now: float) -> Verdict:
        verdict = right(self, image, request, now)
        if verdict is Verdict.REPEATED:
            for tenant, use in self.tenants.items():
                if use.rates is not None:
                    doubled = Rates(*(2 * rate for rate in use.rates))
                    self.tenants[tenant] = use._replace(rates=doubled)
        return verdict

    replace(BrokerUse, "take", take)


QUOTA_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant for plant in (lose_shares_at_a_failover, forget_the_mute, count_a_report_twice)
}
"""Found by `tests.sim.quotas_scenario`."""

QUORUM_BUGS: dict[str, Callable[[Replace], None]] = {"stand_without_pre_vote": stand_without_pre_vote}
"""Found by `tests.sim.quorum_scenario`, which runs no brokers."""

BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant
    for plant in (
        truncate_to_own_high_watermark,
        elect_outside_isr_and_elr,
        acknowledge_before_high_watermark,
        commit_under_min_insync_replicas,
        skip_epoch_check,
        answer_duplicates_before_high_watermark,
        keep_unclean_replica,
        forget_the_start_that_registered,
        join_with_old_broker_epoch,
        recover_last_segment_only,
        move_before_the_copy,
        act_before_the_audit,
        forget_what_was_shipped,
        serve_groups_on_their_way,
        show_offsets_of_a_lone_replica,
        put_two_aside,
        put_aside_below_min_isr,
    )
} | TIER_BUGS

ALL_BUGS = (
    BUGS
    | QUORUM_BUGS
    | FLEET_BUGS
    | PAGE_BUGS
    | BALANCE_BUGS
    | CELL_BUGS
    | QUOTA_BUGS
    | TRANSACTION_BUGS
    | UNDECIDED_BUGS
)


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Within, the product has the mistake `name` ("": none); after it, it is as before."""
    undo: list[tuple[Any, str, object]] = []

    def replace(owner: Any, attribute: str, value: object) -> None:
        undo.append((owner, attribute, vars(owner)[attribute]))
        setattr(owner, attribute, value)

    try:
        if name:
            ALL_BUGS[name](replace)
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)
