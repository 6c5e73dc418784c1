"""Tenants' quotas over several brokers: split by demand, never given twice, and unfair to none."""

from __future__ import annotations

import logging

import pytest

from broker.quotas.tenant_bounds import NO_BOUND, TenantBound
from broker.quotas.tenant_shares import ARRIVAL_ANSWERS
from common.metrics import Metrics
from common.pacing import at_once
from kraft.controller.quota_coordinator import coordinator_of
from kraft.controller.quota_description import describe_shares
from kraft.controller.quota_metrics import OTHERS, TENANTS_MAX, register_quotas, share_bytes, unfair_seconds
from kraft.image.tenants import CONNECTION_RATE, CONNECTIONS_MAX, EGRESS, INGRESS, REQUEST_PERCENTAGE
from kraft.quotas.announced_tenants import QUIET_S
from kraft.quotas.tenant_quotas import Resource
from kraft.records import RemoveTenantRecord, TenantState
from records.audit_event import AuditKind
from tests.broker.quota_world import INTERVAL_S, QUOTA, A, B, QuotaWorld, overloaded
from tests.common.call_count import counted_calls
from tests.kraft.images import POLICY
from tests.kraft.usage_reports import report, tenant_row
from wire.messages import DescribeSharesRequest, ReportUsageResponse

WHOLE = TenantBound(ingress=float(QUOTA))


def test_a_tenant_with_all_its_load_on_one_of_three_brokers_is_not_throttled() -> None:
    world = QuotaWorld()
    world.brokers[0].offered[A] = QUOTA * 7 // 10
    world.pass_time(600)
    assert world.waited_ms() == 0 and world.shares() == {}
    world.brokers[0].offered[A] = QUOTA * 19 // 20
    world.pass_time(600)
    assert world.waited_ms() == 0, "with shares as well"
    assert sum(world.shares().values()) <= QUOTA and world.shares()[0] > QUOTA * 19 // 20


def test_a_tenant_without_a_quota_has_no_bound() -> None:
    world = QuotaWorld()
    world.brokers[0].offered[B] = 1 << 40
    world.pass_time(30)
    assert world.brokers[0].bounds == {} and world.coordinator.splits == {}


def test_a_tenant_far_over_its_quota_is_held_to_it_wherever_its_load_is() -> None:
    world = QuotaWorld()
    for loads in ((40, 40, 40), (120, 0, 0), (0, 60, 1)):
        for broker, load in zip(world.east, loads, strict=True):
            broker.offered[A] = load * 1_000_000
        world.pass_time(60)
        assert QUOTA * 999 // 1000 <= sum(world.shares().values()) <= QUOTA
        assert QUOTA * 93 // 100 <= world.served() <= QUOTA


def test_a_load_that_wanders_below_the_quota_waits_only_until_the_shares_follow() -> None:
    world = QuotaWorld()
    for broker in world.east:
        broker.offered[A] = QUOTA * 3 // 10
    world.pass_time(60)
    before = world.waited_ms()
    for hot in (0, 1, 2):
        for broker in world.east:
            broker.offered[A] = QUOTA * (6 if broker.broker_id == hot else 1) // 10
        world.pass_time(300)
    assert before == 0 and world.waited_ms() <= 3 * 15_000
    unfair = world.coordinator.unfair.of(A)
    assert unfair.all_ms == world.waited_ms() and unfair.unfair_ms > 0, "it used less than its quota"


def test_time_over_the_quota_is_not_unfair() -> None:
    world = QuotaWorld()
    for broker in world.east:
        broker.offered[A] = QUOTA
    world.pass_time(30)
    assert world.waited_ms() > 0
    first = world.coordinator.unfair.of(A)
    world.pass_time(600)
    later = world.coordinator.unfair.of(A)
    assert later.all_ms - first.all_ms == 3 * 600_000 and later.unfair_ms == first.unfair_ms


def test_time_in_which_clients_wait_for_what_they_sent_at_once_is_not_unfair() -> None:
    """Clients send a window's worth, are told to wait, and send again: each report's time shows much or nothing."""
    world = QuotaWorld()
    first = world.brokers[0]
    for _ in range(60):
        first.sent[A] = first.sent.get(A, 0) + 3 * 5 * QUOTA
        for _ in range(3):
            first.waited_ms[A] = first.waited_ms.get(A, 0) + 4_000
            first.offered[A] = 0
            world.now += INTERVAL_S
            for other in world.brokers.values():
                other.report()
    unfair = world.coordinator.unfair.of(A)
    assert unfair.all_ms >= 60 * 3 * 4_000 - 20_000
    assert unfair.unfair_ms <= unfair.all_ms // 10
    before = unfair
    world.pass_time(60)
    for _ in range(10):  # now it sends little, and waits all the same
        first.sent[A] += QUOTA
        first.waited_ms[A] += 4_000
        world.now += INTERVAL_S
        for other in world.brokers.values():
            other.report()
    later = world.coordinator.unfair.of(A)
    assert later.all_ms - before.all_ms == later.unfair_ms - before.unfair_ms == 40_000


def test_quotas_of_loops_are_split_too() -> None:
    world = QuotaWorld(**{REQUEST_PERCENTAGE: 50, EGRESS: 1_000})
    for broker in world.east:
        broker.offered[A] = 1
    world.pass_time(10)
    assert world.brokers[0].bounds[A] == TenantBound(None, 1_000.0, 0.5)
    image = world.image
    for number in range(1, 7):
        for number_of in (0, 1, 2):
            row = tenant_row(A, 5, busy_ns=number * 1_000_000_000 * (number_of + 1), bytes_out=1)
            request = report(
                number_of, image.brokers[number_of].epoch, 100 + number, 100_000 + 5_000 * number, tenants=[row]
            )
            world.usage.take(image, request, world.now)
            at_once(world.coordinator.answer(image, request, world.now))
        world.now += INTERVAL_S
    split = world.coordinator.splits[A][Resource.BUSY]
    assert split.is_bound and sum(split.targets.values()) == 500_000_000
    assert split.targets[0] < split.targets[1] < split.targets[2]


# controllers and brokers that fail -----------------------------------------------------------------------------


def test_a_new_controller_keeps_the_shares_until_all_have_reported() -> None:
    world = overloaded()
    before = world.shares()
    world.fail_over()
    world.silent = {2}
    for seconds in (5.0, 10.0):
        world.brokers[0].offered[A], world.brokers[1].offered[A] = 3 * QUOTA, 0
        world.pass_time(5.0)
        assert world.shares() == before, f"{seconds} s after the failover"
    world.silent = set()
    world.pass_time(60)
    shares = world.shares()  # what shrinks is given to others once it is confirmed, so a little is on its way
    assert QUOTA * 999 // 1000 <= sum(shares.values()) <= QUOTA and shares[0] > before[0]


def test_a_new_controller_gives_away_nothing_of_a_broker_that_it_has_never_heard() -> None:
    world = overloaded()
    before = world.shares()
    world.fail_over()
    world.silent = {2}
    world.brokers[1].offered[A] = QUOTA // 5
    world.pass_time(40)
    assert world.shares()[2] == before[2] and sum(world.shares().values()) <= QUOTA
    assert world.shares()[0] > before[0], "of the share of the other that was heard"


def test_a_new_controller_gives_away_nothing_of_a_fenced_broker_that_it_has_never_heard() -> None:
    world = overloaded()
    before = world.shares()
    world.fail_over()
    world.fence(2)
    world.brokers[1].offered[A] = QUOTA // 5
    world.pass_time(40)
    assert not world.coordinator.is_keeping(world.image, world.now), "all live brokers have reported"
    assert world.shares()[2] == before[2] and sum(world.shares().values()) <= QUOTA
    world.pass_time(40)
    live = {broker: share for broker, share in world.shares().items() if broker != 2}
    assert sum(live.values()) == QUOTA, "its share is stale"


def test_a_brokers_share_is_not_given_away_while_it_may_act_on_it() -> None:
    world = overloaded()
    before = world.shares()
    world.fence(2)
    world.pass_time(50)
    assert sum(share for broker, share in world.shares().items() if broker != 2) <= QUOTA - before[2]
    world.pass_time(40)
    assert sum(share for broker, share in world.shares().items() if broker != 2) == QUOTA
    assert world.shares().get(2) == before[2], "it has not noticed, for it reports nothing"


def test_a_broker_that_hears_no_controller_for_long_grants_an_even_part() -> None:
    world = overloaded()
    world.brokers[0].offered[A] = 0
    world.pass_time(30)
    assert world.shares()[0] < QUOTA // 6
    for seconds in range(5, 60, 5):
        world.now += 5.0
        world.brokers[0].report(answered=False)
        assert world.brokers[0].bounds[A].ingress == world.shares()[0], seconds
    world.now += 5.0
    world.brokers[0].report(heard=False)
    assert world.brokers[0].bounds[A] == TenantBound(ingress=float(QUOTA // 3))
    world.fence(1)
    world.now += 5.0
    world.change_tenant(epoch=9)
    assert world.brokers[0].bounds[A] == TenantBound(ingress=float(QUOTA // 2)), "over the brokers that are live"
    for broker in (0, 2):
        world.brokers[broker].report()
    assert world.brokers[0].bounds[A] != TenantBound(ingress=float(QUOTA // 2)), "a controller has answered"


def test_lost_late_and_doubled_messages_give_no_share_twice() -> None:
    world = overloaded()
    fates = [{"heard": False}, {"answered": False}, {"doubled": True}, {}]
    for number in range(200):
        world.now += 1.7
        broker = world.east[number * 7 % 3]
        for other in world.east:
            other.offered[A] = QUOTA * ((number // 20 + other.broker_id) % 3) // 2
        broker.serve(1.7)
        broker.report(**fates[number * 5 % 4])
        assert sum(world.shares().values()) <= QUOTA


def test_a_controllers_clock_that_jumps_back_stops_no_split() -> None:
    world = overloaded()
    split = world.coordinator.splits[A][Resource.INGRESS]
    assert split.is_due(QUOTA, world.now - 1_000.0)


# the switch ----------------------------------------------------------------------------------------------------


def wandering(world: QuotaWorld) -> None:
    """All of a tenant's load, below its quota, is on one broker."""
    for broker in world.east:
        broker.offered[A] = QUOTA * 9 // 10 if broker.broker_id == 1 else 0


def bounds(world: QuotaWorld) -> list[float | None]:
    return [broker.bounds[A].ingress for broker in world.east]


def test_without_shares_each_broker_holds_an_even_part() -> None:
    world = QuotaWorld()
    world.switch("static")
    wandering(world)
    world.pass_time(60)
    assert bounds(world) == [QUOTA / 3] * 3 and world.shares() == {} and world.coordinator.splits == {}
    world.fence(2)
    world.pass_time(10)
    assert bounds(world)[:2] == [QUOTA / 2] * 2, "over the brokers that are live"
    world.switch("dynamic")
    world.pass_time(60)
    assert world.served() == QUOTA * 9 // 10 and world.shares()[1] > QUOTA * 9 // 10


def test_a_dry_run_shows_shares_that_no_broker_acts_on() -> None:
    world = QuotaWorld()
    world.switch("observe")
    wandering(world)
    world.brokers[0].offered[A] = world.brokers[2].offered[A] = QUOTA
    world.brokers[1].offered[A] = QUOTA // 9
    world.pass_time(60)
    assert bounds(world) == [QUOTA / 3] * 3
    assert world.brokers[1].shares.allocated(A, Resource.INGRESS) == QUOTA // 3
    reply = at_once(
        describe_shares(world.image, DescribeSharesRequest(tenant="a"), world.coordinator, POLICY, world.now)
    ).reply
    ingress = reply.tenants[0].quotas[0]
    assert reply.mode == "observe" and [one.share for one in ingress.brokers] == [QUOTA // 3] * 3
    targets = [one.target for one in ingress.brokers]
    assert sum(targets) == QUOTA and targets[1] < QUOTA // 4
    assert share_bytes(world.coordinator) != [] and all(broker.trail.acts == [] for broker in world.east)
    before = world.shares()
    world.switch("dynamic")
    world.pass_time(INTERVAL_S)
    assert sum(before.values()) <= QUOTA and bounds(world) == [float(world.shares()[broker]) for broker in range(3)]


def test_shares_that_are_switched_off_are_not_given_twice_when_they_come_back() -> None:
    world = overloaded()
    world.silent = {2}
    world.switch("static")
    world.pass_time(10)
    assert bounds(world)[:2] == [QUOTA / 3] * 2
    world.switch("dynamic")
    for _ in range(6):
        world.pass_time(INTERVAL_S)
        assert sum(world.shares().values()) <= QUOTA, "a silent broker still acts on its share"


def test_a_repeated_report_changes_no_switch() -> None:
    world = overloaded()
    world.switch("static")
    world.pass_time(INTERVAL_S)
    world.now += INTERVAL_S
    world.brokers[0].report(doubled=True)
    assert world.brokers[0].bounds[A].ingress == QUOTA / 3


def test_a_tenant_that_begins_while_no_controller_answers_has_an_even_part() -> None:
    world = QuotaWorld()
    for _ in range(13):
        world.now += INTERVAL_S
        world.brokers[0].report(heard=False)
    world.brokers[0].offered[A] = QUOTA
    world.now += INTERVAL_S
    world.brokers[0].report(heard=False)
    assert world.brokers[0].bounds[A] == TenantBound(ingress=float(QUOTA // 3))


def test_shares_are_told_of_when_they_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = overloaded()
    for load in (0, QUOTA, 0, QUOTA, 0):  # comes and goes, which is not told
        for broker in world.east:
            broker.offered[A] = load
        world.pass_time(60)
    assert world.shares() == {}
    world.pass_time(QUIET_S + 2 * INTERVAL_S)
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("quota_coordinator")]
    assert [line.split(",")[0].split(" again")[0] for line in lines] == [
        "a tenant is near its quota",
        "a tenant is far below its quotas",
    ]
    for broker in world.east:
        began, ended = broker.trail.acts
        assert (began.event, ended.event) == (AuditKind.SHARES_BEGAN, AuditKind.SHARES_ENDED)
        assert began.cause == "near its quota of ingress" and began.after["ingress"][1] == QUOTA
        assert began.after["name"] == world.image.tenants[A].name
        assert began.after["tenant"] == ended.before["tenant"] == A and ended.before["seconds"] >= 120


# changes of the tenant -----------------------------------------------------------------------------------------


def test_a_changed_quota_holds_at_once_where_it_is_lower() -> None:
    world = overloaded()
    world.change_tenant(limits={INGRESS: 300})
    assert all(broker.bounds[A].ingress == 300.0 for broker in world.east), "no broker grants more than all of it"
    world.pass_time(30)
    assert sum(world.shares().values()) == 300
    for quota in (1, 2, (1 << 53) + 1, (1 << 63) - 1):
        world.change_tenant(limits={INGRESS: quota})
        world.pass_time(60)
        shares = world.shares()
        assert not shares or sum(shares.values()) == max(quota, 3)
    world.change_tenant(limits={})
    assert all(broker.bounds[A] == NO_BOUND for broker in world.east)
    world.pass_time(10)
    assert world.shares() == {} and world.coordinator.splits == {}


def test_a_tenant_that_moves_while_it_is_throttled_takes_its_quota_along() -> None:
    world = overloaded()
    world.move("west")
    for west in (3, 4, 5):
        world.brokers[west].offered[A] = QUOTA
    world.pass_time(65)
    assert len(world.shares()) == 6 and sum(world.shares().values()) == QUOTA
    world.change_tenant(state=TenantState.ACTIVE, cell="west", target_cell=None)
    for broker in world.east:
        broker.offered[A] = 0
    world.pass_time(90)
    assert set(world.shares()) == {3, 4, 5} and sum(world.shares().values()) == QUOTA


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4, 5])
def test_brokers_that_a_throttled_tenant_moves_to_do_not_each_grant_its_whole_quota(rounds: int) -> None:
    """The controller has not said a word about it to them yet, or has given them shares."""
    world = overloaded()
    world.move("west")
    world.pass_time(rounds * INTERVAL_S)
    for east, west in ((0, 3), (1, 4), (2, 5)):
        world.brokers[east].offered[A], world.brokers[west].offered[A] = 0, QUOTA
    world.change_tenant(state=TenantState.ACTIVE, cell="west", target_cell=None)
    assert 0 < world.served() <= QUOTA
    world.pass_time(60)
    assert QUOTA * 93 // 100 <= world.served() <= QUOTA


def test_a_tenant_below_its_quota_has_no_bound_by_parts_soon_after_its_move_has_begun() -> None:
    world = QuotaWorld()
    world.brokers[0].offered[A] = QUOTA // 2
    world.pass_time(60)
    world.move("west")
    assert world.brokers[3].bounds[A] == TenantBound(ingress=QUOTA // 6, saves=False)
    world.pass_time(ARRIVAL_ANSWERS * INTERVAL_S)
    assert all(world.brokers[west].bounds[A] == WHOLE for west in (3, 4, 5))
    world.change_tenant(keys_epoch=7)  # a later step of the same move
    assert all(world.brokers[west].bounds[A] == WHOLE for west in (3, 4, 5))
    assert world.waited_ms() == 0


def test_a_new_broker_holds_an_even_part_for_as_long_as_others_have_all_shares() -> None:
    world = overloaded()
    world.move("west")
    comes = world.brokers[3]
    row = ReportUsageResponse.TenantShares(tenant=A, is_split=True)
    for _ in range(3 * ARRIVAL_ANSWERS):
        comes.shares.take([A], ReportUsageResponse(error_code=0, keep=False, even=False, shares=[row]))
        assert comes.bounds[A] == TenantBound(ingress=QUOTA // 6, saves=False)
    for left in reversed(range(ARRIVAL_ANSWERS)):
        comes.shares.take([A], ReportUsageResponse(error_code=0, keep=False, even=False, shares=[]))
        assert (comes.bounds[A] == WHOLE) is (left == 0)


def test_the_controller_says_that_a_quota_is_split_where_no_share_is_left() -> None:
    world = overloaded()
    world.move("west")
    number = world.brokers[3].round + 1
    request = report(3, world.image.brokers[3].epoch, number, 10**9, bytes_in=0, tenants=[tenant_row(A, 0)])
    answer = world.answer(request)
    assert answer is not None
    (row,) = answer.shares
    assert (row.tenant, row.ingress, row.is_split) == (A, -1, True)


def test_nothing_is_kept_of_a_tenant_that_is_gone() -> None:
    world = overloaded()
    world.replay(RemoveTenantRecord(A))
    assert world.coordinator.splits == {} and world.shares() == {}
    assert world.coordinator.unfair.tenants() == {}
    assert all(broker.bounds[A] == NO_BOUND for broker in world.east)


# connections ---------------------------------------------------------------------------------------------------


def test_connections_are_limited_over_all_brokers() -> None:
    world = QuotaWorld(**{CONNECTIONS_MAX: 10, CONNECTION_RATE: 100})
    shares, tenant = world.brokers[0].shares, world.image.tenants[A]
    assert shares.connections_here(tenant, 10) == 7, "twice an even part, rounded up"
    assert shares.connection_rate_here(tenant, 100) == 67
    assert shares.connection_rate_here(tenant, 0) == 0
    world.brokers[1].connections[A], world.brokers[2].connections[A] = 4, 3
    world.brokers[0].connections[A] = 1
    world.pass_time(10)
    assert shares.connections_here(tenant, 10) == 3, "exactly what others leave"
    world.brokers[1].connections[A] = world.brokers[2].connections[A] = 0
    world.pass_time(10)
    assert shares.connections_here(tenant, 10) == 7


# what is shown, and what it costs ------------------------------------------------------------------------------


def test_shares_are_described() -> None:
    world = overloaded()
    assert coordinator_of(A, world.image) == world.image.leader_id
    request = DescribeSharesRequest(tenant=None)
    reply = at_once(describe_shares(world.image, request, world.coordinator, POLICY, world.now)).reply
    (row,) = reply.tenants
    assert (row.tenant, row.tenant_name, reply.is_keeping) == (A, "a", False)
    ingress, egress, busy = row.quotas
    assert (ingress.resource, ingress.quota, ingress.is_bound) == ("ingress", QUOTA, True)
    assert {one.broker_id: one.share for one in ingress.brokers} == world.shares()
    assert sum(one.target for one in ingress.brokers) == QUOTA
    assert (egress.quota, egress.is_bound, [one.share for one in busy.brokers]) == (0, False, [-1] * 3)
    assert row.throttled_ms == world.waited_ms() and row.unfair_ms <= row.throttled_ms
    unknown = at_once(
        describe_shares(world.image, DescribeSharesRequest(tenant="x"), world.coordinator, POLICY, world.now)
    )
    assert unknown.reply.error_code != 0


def test_metrics_have_a_bounded_number_of_series() -> None:
    world = overloaded()
    shares = {int(labels["broker"]): value for labels, value in share_bytes(world.coordinator)}
    assert shares == world.shares()
    for number in range(TENANTS_MAX + 10):
        world.coordinator.unfair.add(f"lkc-{number:06}", 2_000, 1_000)
    found = {labels["tenant"]: seconds for labels, seconds in unfair_seconds(world.coordinator)}
    assert len(found) == TENANTS_MAX + 1 and found["lkc-000000"] == 1.0
    assert found[OTHERS] == 11.0, "one of the throttled tenants was there before"
    world.coordinator.unfair.forget("lkc-000000")
    assert len(unfair_seconds(world.coordinator)) == TENANTS_MAX + 1
    assert sum(value for _, value in unfair_seconds(world.coordinator)) * 1000 == world.coordinator.unfair.unfair_ms
    metrics = Metrics()
    register_quotas(metrics, world.coordinator)
    assert b"tidelog_tenants_with_shares 1" in metrics.text()


def test_tenants_far_from_their_quotas_cost_one_look_each() -> None:
    world = QuotaWorld()
    image, rows = world.image, [tenant_row(A, 5)] * 300
    request = report(0, image.brokers[0].epoch, 1, 5_000, tenants=rows)
    world.usage.take(image, request, world.now)
    with counted_calls() as count:
        answer = at_once(world.coordinator.answer(image, request, world.now))
    assert isinstance(answer, ReportUsageResponse) and answer.shares == []
    assert count.calls < 300 * 100
