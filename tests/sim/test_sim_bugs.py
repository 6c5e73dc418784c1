"""Every planted mistake is found, within a few seeds of faults that suit it; the right program passes the same runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.bugs import BUGS, planted
from tests.sim.cluster import run_plan
from tests.sim.nemesis import BUCKET, Fault
from tests.sim.plan import SMALL_CHUNK_BYTES, Plan, TierPlan, draw_plan
from tests.sim.tier_bugs import SWAP_BUGS, TIER_BUGS

pytestmark = pytest.mark.simulation
SEEDS_MAX = 12
HEALTH_BUGS = ("put_two_aside", "put_aside_below_min_isr")
FOUND_BY = ("InvariantBroken", "FilesRaced", "UnhandledException", "SimulationFailure", "NotServing")


def brokers(seed: int) -> tuple[str, str, str]:
    """Each role in turn to each broker."""
    return tuple(f"broker-{(seed + number) % 3}" for number in range(3))  # type: ignore[return-value]


def leaders_die_on_slow_links(seed: int) -> list[Fault]:
    a, b, c = brokers(seed)
    links = [(a, b), (b, a), (a, c), (c, a), (b, c), (c, b)]
    faults = [Fault(0, "slow_link", one, other, 4_400) for one, other in links]
    return faults + [Fault(700 + 1_200 * number, "kill", name, "", 500) for number, name in enumerate((a, b, c))]


def the_behind_one_comes_back_alone(seed: int) -> list[Fault]:
    a, b, c = brokers(seed)
    return [Fault(100, "kill", a, "", 2_300), Fault(1_500, "kill", b, "", 3_000), Fault(1_550, "kill", c, "", 2_900)]


def one_dies_and_another_freezes(seed: int) -> list[Fault]:
    """What is sent meanwhile waits for the frozen one until the controller gives it up."""
    a, b, _ = brokers(seed)
    return [Fault(100, "kill", a, "", 4_400), Fault(1_300, "pause", b, "", 3_000)]


def a_leader_only_clients_reach(seed: int) -> list[Fault]:
    a, b, c = brokers(seed)
    others = [b, c, *(f"controller-{number}" for number in range(3))]
    return [Fault(300, "cut", a, other, 2_200) for other in others]


def resets_while_a_follower_sleeps(seed: int) -> list[Fault]:
    faults = []
    for number, sleeper in enumerate(brokers(seed)):
        at_ms = 100 + 1_400 * number
        faults.append(Fault(at_ms, "pause", sleeper, "", 700))
        for other in brokers(seed):
            faults += [Fault(at_ms + wait_ms, "reset", "producer", other, 1) for wait_ms in (150, 300, 450)]
    return sorted(faults)


def leaders_die_on_slow_disks(seed: int) -> list[Fault]:
    disks = [Fault(0, "slow_disk", name, "", 4_400) for name in brokers(seed)]
    return disks + [Fault(700 + 1_200 * number, "kill", name, "", 500) for number, name in enumerate(brokers(seed))]


def power_lost_in_a_small_isr(seed: int) -> list[Fault]:
    a, b, _ = brokers(seed)
    return [Fault(100, "pause", a, "", 4_300), Fault(1_700, "power", b, "", 500)]


def one_returns(seed: int) -> list[Fault]:
    return [Fault(200, "kill", brokers(seed)[0], "", 400)]


def power_lost_on_a_slow_disk(seed: int) -> list[Fault]:
    a = brokers(seed)[0]
    return [
        Fault(0, "slow_disk", a, "", 4_400),
        Fault(900, "power", a, "", 300),
        Fault(2_900, "power", a, "", 300),
    ]


def a_leader_that_cannot_publish_is_cut_off(seed: int) -> list[Fault]:
    """The store comes back while it still takes itself for the leader."""
    a, b, c = brokers(seed)
    others = [b, c, *(f"controller-{number}" for number in range(3))]
    cuts = [Fault(800, "cut", a, other, 3_600) for other in others]
    return [Fault(300, "store_down", BUCKET, "", 2_400), *cuts]


def reports_are_slow(seed: int) -> list[Fault]:
    controllers = [f"controller-{number}" for number in range(3)]
    return [Fault(0, "slow_link", f"broker-{broker}", other, 4_400) for broker in range(6) for other in controllers]


def a_lone_leader_only_clients_reach(seed: int) -> list[Fault]:
    """The others die one after another, and come back when it is cut off."""
    a, b, c = brokers(seed)
    others = [b, c, *(f"controller-{number}" for number in range(3))]
    deaths = [Fault(1_100, "kill", b, "", 1_100), Fault(1_400, "kill", c, "", 900)]
    return [*deaths, *(Fault(1_900, "cut", a, other, 2_600) for other in others)]


def no_clients_at_two(seed: int) -> list[Fault]:
    a, b, _ = brokers(seed)
    return [Fault(0, "no_clients", name, "", 4_400) for name in (a, b)]


def one_dies_and_another_replies_late(seed: int) -> list[Fault]:
    """The other two and the one that is late know enough to judge it."""
    a, b, _ = brokers(seed)
    return [Fault(900, "kill", a, "", 3_500), Fault(1_300, "slow_replies", b, "", 3_100)]


FAULTS: dict[str, Callable[[int], list[Fault]]] = {
    "truncate_to_own_high_watermark": leaders_die_on_slow_links,
    "elect_outside_isr_and_elr": the_behind_one_comes_back_alone,
    "acknowledge_before_high_watermark": one_returns,
    "commit_under_min_insync_replicas": one_dies_and_another_freezes,
    "skip_epoch_check": a_leader_only_clients_reach,
    "answer_duplicates_before_high_watermark": resets_while_a_follower_sleeps,
    "keep_unclean_replica": power_lost_in_a_small_isr,
    "forget_the_start_that_registered": leaders_die_on_slow_links,
    "join_with_old_broker_epoch": one_returns,
    "recover_last_segment_only": power_lost_on_a_slow_disk,
    "move_before_the_copy": one_returns,
    "act_before_the_audit": leaders_die_on_slow_links,
    "forget_what_was_shipped": leaders_die_on_slow_links,
    "serve_groups_on_their_way": reports_are_slow,
    "show_offsets_of_a_lone_replica": a_lone_leader_only_clients_reach,
    "put_two_aside": no_clients_at_two,
    "put_aside_below_min_isr": one_dies_and_another_replies_late,
    "delete_without_claim": leaders_die_on_slow_links,
    "ignore_lineage": lambda seed: [],
    "delete_local_before_copied": lambda seed: [Fault(300, "store_down", BUCKET, "", 3_000)],
    "overwrite_manifests": a_leader_that_cannot_publish_is_cut_off,
    "delete_objects_before_manifest": one_returns,
    "begin_without_producers": one_returns,
    "deny_the_log_to_old_readers": one_returns,
    "swap_inputs_that_changed": lambda seed: [],
    "delete_objects_with_the_swap": lambda seed: [],
    "flush_beside_the_flusher": leaders_die_on_slow_disks,
    "take_a_loss_for_compaction": power_lost_on_a_slow_disk,
    "keep_the_old_tier_end": lambda seed: [],
}


def plan_of(bug: str, seed: int) -> Plan:
    ambush = bug == "join_with_old_broker_epoch"
    plan = replace(draw_plan(seed), brokers=3, flushes_each=False, pause_s=0.06, ambush=ambush, moves=False, tier=None)
    plan = replace(plan, tenant=False, watched=False)
    plan = replace(plan, peeks=bug == "show_offsets_of_a_lone_replica", health=bug in HEALTH_BUGS)
    if bug in TIER_BUGS:
        unclean, moves = bug == "ignore_lineage", bug == "begin_without_producers"
        keeps_all = unclean or moves or bug == "deny_the_log_to_old_readers"
        tier = TierPlan(1_024, 1_024, -1 if keeps_all else 3_000, SMALL_CHUNK_BYTES, unclean=unclean)
        if bug == "keep_the_old_tier_end":
            tier = replace(tier, leaves=True, total_bytes=-1)
        tier = replace(tier, rewrites=bug in SWAP_BUGS, total_bytes=-1 if bug in SWAP_BUGS else tier.total_bytes)
        plan = replace(plan, tier=tier, moves=moves, brokers=4 if moves else 3)
    if bug == "put_aside_below_min_isr":
        plan = replace(plan, brokers=4, partitions=6)
    if bug == "forget_the_start_that_registered":
        plan = replace(plan, deaths_in_registration=True)
    if bug == "move_before_the_copy":
        plan = replace(plan, brokers=4, moves=True)
    if bug == "recover_last_segment_only":
        plan = replace(plan, segment_bytes=4_096, pause_s=0.03)
    if bug == "serve_groups_on_their_way":
        plan = replace(plan, brokers=6, tenant=True)
    return replace(plan, faults=tuple(FAULTS[bug](seed)))


def test_every_mistake_has_faults_that_suit_it() -> None:
    assert list(FAULTS) == list(BUGS)


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_mistake_is_found(bug: str) -> None:
    for seed in range(SEEDS_MAX):
        with planted(bug):
            report = run_plan(plan_of(bug, seed))
        if report.failure:
            assert report.failure.startswith(FOUND_BY), report.failure
            right = run_plan(plan_of(bug, seed))
            assert right.failure == "", f"the right program fails as well: {right.failure}"
            return
    pytest.fail(f"{bug} is not found in {SEEDS_MAX} seeds")
