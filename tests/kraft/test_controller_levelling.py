"""Loads are levelled by the controllers: which moves begin, what they wait for, and what begins by itself."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from common.errors import ErrorCode
from common.node_settings.balance import BalanceSettings
from common.pacing import Work, at_once
from kraft.balancer.model import ModelBroker, ModelPartition, model_of
from kraft.controller.balance_levelling import Inputs, beginning, judged, levelling, load_shares, looking
from kraft.controller.balance_requests import BalanceAct, plan_balance
from kraft.controller.balance_status import Look
from kraft.controller.balance_steps import BalanceStep
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.brokers import fence
from kraft.controller.reported_usage import ReportedUsage
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, OperationKind, OperationState
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, PartitionChangeRecord
from tests.kraft.balancing import (
    BALANCING,
    NOW_MS,
    altered,
    caught_up,
    finished,
    operation_of,
    replicas_of,
    stepped,
    throttled,
    with_partitions,
)
from tests.kraft.usage_reports import report
from wire.messages import PlanBalanceRequest, ReportUsageRequest, schema_uuid

SPREAD = [[0, 1, 2], [1, 2, 0], [2, 0, 1]] * 4
MB, GB = 1_000_000, 1_000_000_000
NO_REST = replace(BALANCING, balance=BalanceSettings(moves_max=3, bytes_per_second=1_000, rest_ms=0))


def reported(
    image: MetadataImage, rates: dict[int, int] | None = None, used: dict[int, int] | None = None
) -> ReportedUsage:
    """Every broker has reported twice; `rates`: bytes a second that producers send to a partition, 5 MB without;
    `used`: gigabytes of a disk of 100."""
    usage = ReportedUsage()
    topic = image.topics.by_name["t"]
    row = ReportUsageRequest.PartitionUsageReport
    for broker in image.brokers:
        led = [p for p in topic.partitions.values() if p.leader == broker]
        partitions = [
            row(
                topic_id=schema_uuid(topic.topic_id),
                partition_index=one.partition,
                bytes_in=(rates or {}).get(one.partition, 5 * MB) * 5,
                bytes_out=(rates or {}).get(one.partition, 5 * MB) * 5,
            )
            for one in led
        ]
        for number in (1, 2):
            epoch = image.brokers[broker].epoch
            disk: dict[str, Any] = {}
            if used is not None:
                disk = {"disk_used_bytes": used.get(broker, 40) * GB, "disk_size_bytes": 100 * GB}
            request = report(broker, epoch, number, number * 5_000, partitions=partitions, **disk)
            usage.take(image, request, number * 5.0)
    return usage


def inputs(
    image: MetadataImage, policy: Any = NO_REST, rates: dict[int, int] | None = None, at_ms: int = NOW_MS
) -> Inputs:
    return Inputs(policy, reported(image, rates), 10.0, at_ms)


def level(image: MetadataImage, operation: BalanceOperationRecord) -> Work[BalanceStep]:
    return levelling(image, inputs(image), operation)


def test_an_added_broker_gets_its_share_of_replicas_and_leaderships() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    image = ended(image)
    held = Counter(broker for replicas in replicas_of(image) for broker in replicas)
    assert held[3] >= 8  # of 36 replicas, where 9 are its share
    leads = Counter(partition.leader for partition in image.topics.by_name["t"].partitions.values())
    assert leads[3] >= 2
    assert not throttled(image)
    assert {move.goal for move in image.balance.moves.values()} <= {
        "replicas", "network-in", "network-out", "load", "topic-replicas", "leaders", "leader-bytes",
    }  # fmt: skip


def ended(image: MetadataImage, number: int = 1) -> MetadataImage:
    """Minutes pass, so that leaderships may move again."""
    at_ms = NOW_MS
    for _ in range(300):
        operation = operation_of(image, number)
        if operation.state.has_ended:
            return image
        at_ms += 20_000
        step = at_once(levelling(image, inputs(image, at_ms=at_ms), operation))
        image = replayed(image, step.records)
        if not step.records:
            image = caught_up(image)
    raise AssertionError(f"{operation_of(image, number)}")


def test_a_broker_with_its_share_is_filled_without_a_word() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    assert operation_of(ended(image)).reason == "asked for by an operator"


def test_a_broker_that_gets_too_little_is_named_in_the_reason() -> None:
    """Its disk is nearly full."""
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)

    def level_full(now: MetadataImage, operation: BalanceOperationRecord) -> Work[BalanceStep]:
        return levelling(now, Inputs(NO_REST, reported(now, used={3: 79}), 10.0, NOW_MS + 120_000), operation)

    operation = operation_of(finished(image, level_full))
    assert operation.state is OperationState.DONE
    assert operation.reason.startswith("asked for by an operator; broker 3 has 0.")
    assert operation.reason.endswith("of its fair share of load (disk-capacity)")
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.RUN)
    assert operation_of(finished(image, level_full)).reason == "asked for by an operator", "nobody was to be filled"


def test_a_broker_that_gets_no_replica_is_named_in_the_reason() -> None:
    """There is no load to speak of, and its disk is fuller than it may be."""
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)

    def level_fuller(now: MetadataImage, operation: BalanceOperationRecord) -> Work[BalanceStep]:
        usage = reported(now, dict.fromkeys(range(12), 10), dict.fromkeys(range(4), 82))
        return levelling(now, Inputs(NO_REST, usage, 10.0, NOW_MS + 120_000), operation)

    done = finished(image, level_fuller)
    assert operation_of(done).reason == "asked for by an operator; broker 3 has few replicas (disk-capacity)"
    assert not done.balance.moves


def test_little_load_is_no_shortfall() -> None:
    image, _reply = altered(with_partitions([[0, 1, 2]]), BalanceAct.ADD, 3)
    done = finished(image, lambda now, operation: levelling(now, inputs(now, rates={0: 1_000}), operation))
    assert operation_of(done).reason == "asked for by an operator"


def test_a_filled_broker_counts_at_the_speed_of_the_others() -> None:
    """What it reports shows only later what has just come."""
    brokers = [ModelBroker(number, "default", load=0.6 if number else 0.0) for number in range(2)]
    partitions = [ModelPartition(bytes(16), number, (number,), number, (number,), 5e7) for number in range(2)]
    shares = at_once(load_shares(model_of(brokers, partitions), frozenset({0})))
    assert shares == pytest.approx({0: 1.0})


def test_each_step_begins_no_more_than_the_budget() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    most = 0
    for _ in range(6):
        image, step = stepped(image, level)
        most = max(most, len(image.balance.running))
        assert sum(move.is_of_leader for move in step.begun) <= 10
        image = caught_up(image) if not step.records else image
    assert most == 3


def test_only_so_many_leaderships_move_in_a_minute() -> None:
    one_broker = [[0, 1, 2]] * 12
    policy = replace(NO_REST, balance=BalanceSettings(moves_max=1, leader_moves_max=2, rest_ms=0))
    image, _reply = altered(with_partitions(one_broker, brokers=3), BalanceAct.RUN)
    moved = []
    for at_ms in (NOW_MS, NOW_MS + 10_000, NOW_MS + 61_000):
        step = at_once(levelling(image, inputs(image, policy, at_ms=at_ms), operation_of(image)))
        image = replayed(image, step.records)
        moved.append(sum(move.is_of_leader for move in step.begun))
        assert step.begun or step.waits
    assert moved == [2, 0, 2]


def test_a_partition_rests_after_a_move() -> None:
    one_broker = [[0, 1, 2]] * 6
    image, _reply = altered(with_partitions(one_broker, brokers=3), BalanceAct.RUN)
    step = at_once(levelling(image, inputs(image, BALANCING), operation_of(image)))
    image = replayed(image, step.records)
    later = at_once(levelling(image, inputs(image, BALANCING, at_ms=NOW_MS + 61_000), operation_of(image)))
    keys = [(move.partition) for move in (*step.begun, *later.begun)]
    assert len(keys) == len(set(keys))


# what it waits for -----------------------------------------------------------------------------------------


def test_nothing_begins_before_brokers_have_reported() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    step = at_once(levelling(image, Inputs(NO_REST, ReportedUsage(), 1.0, NOW_MS), operation_of(image)))
    assert not step.records
    assert "not reported" in step.waits


def test_nothing_begins_while_a_broker_is_down_or_a_replica_out_of_sync() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    down = replayed(image, fence(image, image.brokers[0], NO_REST, Cause.SESSION_EXPIRED))
    step = at_once(level(down, operation_of(down)))
    assert (step.records, step.waits) == ([], "broker 0 is down or stops")
    moved = image.topics.by_name["t"].partitions[0]
    short = replayed(image, [PartitionChangeRecord(moved.topic_id, moved.partition, isr=moved.isr[:2])])
    step = at_once(level(short, operation_of(short)))
    assert not step.records
    assert "not in sync" in step.waits


# what begins by itself -------------------------------------------------------------------------------------


def test_an_empty_broker_is_filled_at_once_and_not_again() -> None:
    image = with_partitions(SPREAD)
    look = at_once(looking(image, inputs(image), Look()))
    assert (look.reason, look.brokers) == ("empty broker 3", (3,))
    operation = beginning(image, look, NOW_MS)
    assert operation is not None
    assert (operation.kind, operation.brokers, operation.state) == (OperationKind.ADD, (3,), OperationState.RUNNING)
    begun = replayed(image, [operation])
    assert beginning(begun, look, NOW_MS) is None
    over = replayed(begun, [msgspec.structs.replace(operation, state=OperationState.DONE, ended_ms=NOW_MS)])
    soon = at_once(looking(over, inputs(over, at_ms=NOW_MS + 1_000), Look()))
    assert not soon.brokers, "filling it has brought nothing"
    assert at_once(looking(over, inputs(over, at_ms=NOW_MS + 31 * 60_000), Look())).brokers == (3,)


def test_nothing_begins_while_a_broker_with_replicas_does_not_report() -> None:
    """Long after the election: it has restarted, or its reports get lost."""
    image = with_partitions(SPREAD)  # broker 3 is empty
    usage, late_s = reported(image), 30.0
    for broker in image.brokers:
        for number, at_s in ((3, 20.0), (4, late_s)):
            if broker != 1:
                usage.take(image, report(broker, image.brokers[broker].epoch, number, 5_000 * number), at_s)
    look = at_once(looking(image, Inputs(NO_REST, usage, late_s, NOW_MS), Look()))
    assert (look.obstacle, look.reason) == ("broker 1 does not report what it does", "")
    for number in (3, 4):
        usage.take(image, report(1, image.brokers[1].epoch, number, 5_000 * number), late_s)
    assert at_once(looking(image, Inputs(NO_REST, usage, late_s, NOW_MS), Look())).brokers == (3,)


def test_a_level_cluster_begins_nothing() -> None:
    image = with_partitions(SPREAD, brokers=3)
    look = Look()
    for _ in range(4):
        look = at_once(looking(image, inputs(image), look))
        assert (look.reason, look.looks) == ("", {})


def test_hot_partitions_begin_an_operation_after_three_looks_and_end_level() -> None:
    image = with_partitions(SPREAD, brokers=3)
    hot = {partition.partition: 60 * MB for partition in image.topics.by_name["t"].partitions.values()
           if partition.leader == 0}  # fmt: skip
    look = Look()
    found = []
    for _ in range(3):
        look = at_once(looking(image, inputs(image, rates=hot), look))
        found.append(look.reason)
    assert found[2] and "broker 0" in found[2], look
    operation = beginning(image, look, NOW_MS)
    assert operation is not None and operation.kind is OperationKind.BALANCE


def test_a_goal_that_is_even_in_between_is_counted_from_the_start() -> None:
    look = Look()
    found = []
    for lasting in ([("load", 1)], [("load", 1)], [], [("load", 1)], [("load", 1)], [("load", 1)]):
        look = judged([], lasting, look)
        found.append(look.reason)
    assert found == ["", "", "", "", "", "load of broker 1"]


def test_a_hard_goal_and_an_empty_broker_count_at_once_and_the_broker_first() -> None:
    assert judged([("disk-capacity", 2)], [], Look()).reason == "disk-capacity of broker 2"
    look = judged([("disk-capacity", 2), ("empty broker", 3)], [], Look())
    assert (look.reason, look.brokers) == ("empty broker 3", (3,))


def test_a_plan_says_what_would_move_and_moves_nothing() -> None:
    image = with_partitions(SPREAD)
    given = inputs(image)
    request = PlanBalanceRequest(toward=[3], moves_max=100)
    decision = at_once(plan_balance(image, request, given, BrokerLoads(), random.Random(1)))
    assert not decision.records
    assert decision.reply.is_known
    assert decision.reply.moves
    assert all(3 in move.replicas_after for move in decision.reply.moves)


def test_a_plan_for_a_broker_that_is_not_there_is_refused() -> None:
    image = with_partitions(SPREAD)
    request = PlanBalanceRequest(toward=[3, 99], moves_max=100)
    reply = at_once(plan_balance(image, request, inputs(image), BrokerLoads(), random.Random(1))).reply
    assert (reply.error_code, reply.error_message) == (ErrorCode.BROKER_ID_NOT_REGISTERED, "There is no broker 99.")


def test_a_move_says_what_asked_for_it_and_who_agreed() -> None:
    image, _reply = altered(with_partitions(SPREAD), BalanceAct.ADD, 3)
    _image, step = stepped(image, level)
    records = [record for record in step.records if isinstance(record, BalanceMoveRecord)]
    assert records == list(step.begun)
    assert all(move.goal and move.target_after > move.target_before for move in records)
    assert any(move.agreed for move in records)


@pytest.mark.parametrize("act", [BalanceAct.RUN])
def test_a_balance_that_finds_nothing_ends_at_once(act: BalanceAct) -> None:
    image, _reply = altered(with_partitions(SPREAD, brokers=3), act)
    assert operation_of(finished(image, level)).moves_begun == 0
