"""The driver over a quorum that commits at once, late, or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from common.decision import Decision
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.invariants import check
from kraft.batches import MetadataRecord
from kraft.controller.driver import Decide, DriverConfig
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import ConfigRecord, ResourceType, TopicRecord
from tests.common.call_count import counted_calls
from tests.kraft.decisions import decide_create_topics
from tests.kraft.fake_quorum import Bench
from tests.kraft.images import create_topics, new_topic, rng, with_brokers

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.begin()
    yield bench
    await bench.driver.stop()
    assert not bench.fatal


def add_topic(name: str) -> Decide:
    """Fails when a topic of that name is there already."""

    def decide(image: MetadataImage) -> Decision[MetadataRecord, Any]:
        if name in image.topics:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS)
        return Decision(name, [TopicRecord(name, name.encode().ljust(16))])

    return decide


def names_seen(image: MetadataImage) -> Decision[MetadataRecord, Any]:
    return Decision(sorted(image.topics.by_name))


async def held_write(bench: Bench, decide: Decide) -> asyncio.Task[Any]:
    """A write whose batch is in flight and stays there."""
    bench.quorum.hold = True
    task = asyncio.create_task(bench.driver.write(decide))
    await bench.settle(lambda: bench.quorum.held)
    return task


async def outcome(task: asyncio.Task[Any]) -> object:
    try:
        return await task
    except ProtocolError as error:
        return error.code
    except OutcomeUnknown:
        return OutcomeUnknown


async def test_the_first_leader_makes_the_cluster_and_its_id_stays(bench: Bench) -> None:
    image = bench.machine.image
    assert image.cluster_id is not None
    assert image.metadata_version > 0
    bench.quorum.lose()
    bench.quorum.win()
    await bench.settle(lambda: bench.driver.is_active)
    assert await bench.driver.write(lambda i: Decision(i.cluster_id)) == image.cluster_id
    assert bench.activity == [True, False, True]


async def test_a_reply_comes_after_the_commit(bench: Bench) -> None:
    task = await held_write(bench, add_topic("a"))
    assert not task.done()
    assert "a" not in bench.machine.image.topics
    bench.quorum.release()
    assert await task == "a"
    assert "a" in bench.machine.image.topics


async def test_writes_that_gather_are_decided_in_turn_and_committed_together(bench: Bench) -> None:
    first = await held_write(bench, add_topic("a"))
    before = len(bench.quorum.proposals)
    waiting = [asyncio.create_task(bench.driver.write(add_topic(name))) for name in ("b", "c", "b", "d")]
    await asyncio.sleep(0.01)
    bench.quorum.release()
    assert await first == "a"
    assert [await outcome(task) for task in waiting] == ["b", "c", ErrorCode.TOPIC_ALREADY_EXISTS, "d"]
    assert len(bench.quorum.proposals) == before + 1


async def test_an_error_about_something_uncommitted_waits_for_its_commit(bench: Bench) -> None:
    first = await held_write(bench, add_topic("a"))
    group = [asyncio.create_task(bench.driver.write(add_topic("b"))) for _ in range(2)]
    await asyncio.sleep(0.01)
    bench.quorum.release()
    bench.quorum.hold = True
    await first
    await bench.settle(lambda: bench.quorum.held)
    assert not any(task.done() for task in group)  # "it exists" would be a lie if the batch were lost
    bench.quorum.lose()
    assert [await outcome(task) for task in group] == [OutcomeUnknown, OutcomeUnknown]


async def test_a_read_is_answered_without_a_proposal(bench: Bench) -> None:
    await bench.driver.write(add_topic("a"))
    before = len(bench.quorum.proposals)
    assert await bench.driver.write(names_seen) == ["a"]
    assert len(bench.quorum.proposals) == before


async def test_a_lost_term_fails_what_waits_and_leaves_the_fate_of_what_was_sent_open(bench: Bench) -> None:
    sent = await held_write(bench, add_topic("sent"))
    waiting = asyncio.create_task(bench.driver.write(add_topic("waiting")))
    await asyncio.sleep(0.01)
    bench.quorum.lose()
    assert await outcome(sent) is OutcomeUnknown
    assert await outcome(waiting) is ErrorCode.NOT_CONTROLLER
    assert not bench.driver.is_active
    with pytest.raises(ProtocolError) as refused:
        await bench.driver.write(add_topic("later"))
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_nothing_speculative_outlives_a_lost_term(bench: Bench) -> None:
    sent = await held_write(bench, add_topic("lost"))
    bench.quorum.lose()
    await outcome(sent)
    bench.quorum.hold = False
    bench.quorum.win()
    await bench.settle(lambda: bench.driver.is_active)
    assert await bench.driver.write(names_seen) == []
    assert await bench.driver.write(add_topic("lost")) == "lost"


async def test_an_unknown_outcome_makes_the_controller_claim_its_term_anew(bench: Bench) -> None:
    """The batch was committed after all: the next decision must see it."""
    sent = await held_write(bench, add_topic("a"))
    term = bench.quorum.term
    bench.quorum.hold = False
    bench.quorum.commit_unheard()
    assert await outcome(sent) is OutcomeUnknown
    await bench.settle(lambda: bench.driver.is_active)
    assert bench.machine.image.epoch == term
    with pytest.raises(ProtocolError) as refused:
        await bench.driver.write(add_topic("a"))
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_batch_that_lands_after_the_new_claim_has_no_effect(bench: Bench) -> None:
    sent = await held_write(bench, add_topic("late"))
    late = bench.quorum.held[0][0]
    bench.quorum.hold = False
    bench.quorum.held[0][1].set_exception(OutcomeUnknown("timeout"))
    bench.quorum.held.clear()
    assert await outcome(sent) is OutcomeUnknown
    await bench.settle(lambda: bench.driver.is_active)
    before = bench.machine.image
    bench.machine.apply(10_000, late)
    assert bench.machine.image is before


async def test_a_deposed_controllers_batch_is_fenced(bench: Bench) -> None:
    sent = await held_write(bench, add_topic("a"))
    other = Bench(machine=bench.machine, node_id=2)
    await other.driver.start()
    other.quorum.win(term=bench.quorum.term + 1)
    await other.settle(lambda: other.driver.is_active)
    bench.quorum.release()
    assert await outcome(sent) is ErrorCode.NOT_CONTROLLER
    assert "a" not in bench.machine.image.topics
    await other.driver.stop()


async def test_a_bug_in_one_decision_fails_that_request_alone(bench: Bench) -> None:
    def broken(image: MetadataImage) -> Decision[MetadataRecord, Any]:
        raise KeyError("a secret of the implementation")

    first = await held_write(bench, add_topic("a"))
    group = [asyncio.create_task(bench.driver.write(decide)) for decide in (add_topic("b"), broken, add_topic("c"))]
    await asyncio.sleep(0.01)
    bench.quorum.release()
    await first
    assert [await outcome(task) for task in group] == ["b", ErrorCode.UNKNOWN_SERVER_ERROR, "c"]


async def test_a_decision_that_contradicts_the_image_is_not_proposed(bench: Bench) -> None:
    await bench.driver.write(add_topic("a"))
    before = len(bench.quorum.proposals)
    task = asyncio.create_task(bench.driver.write(lambda _i: Decision(None, [TopicRecord("a", bytes(16))])))
    assert await outcome(task) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(bench.quorum.proposals) == before


async def test_a_broken_invariant_stops_the_node() -> None:
    bench = Bench()
    await bench.begin()

    def broken(image: MetadataImage) -> Decision[MetadataRecord, Any]:
        check(False, "the moon is made of cheese")
        return Decision(None)

    task = asyncio.create_task(bench.driver.write(broken))
    await bench.settle(lambda: bench.fatal)
    assert "cheese" in bench.fatal[0]
    task.cancel()
    await bench.driver.stop()


async def test_a_large_decision_is_split_below_the_quorums_limit() -> None:
    bench = Bench(config=DriverConfig(proposal_bytes_max=10_000))
    await bench.begin()
    before = len(bench.quorum.proposals)
    records: list[MetadataRecord] = [
        ConfigRecord(ResourceType.BROKER, "", f"name-{i:04}", "v" * 40) for i in range(500)
    ]
    await bench.driver.write(lambda _i: Decision(None, list(records)))
    proposals = bench.quorum.proposals[before:]
    assert 3 <= len(proposals) <= 6
    assert max(map(len, proposals)) < 10_500
    assert len(bench.machine.image.configs.cluster()) == 500
    await bench.driver.stop()


async def test_a_split_decision_that_is_cut_off_halfway_is_not_called_without_effect() -> None:
    bench = Bench(config=DriverConfig(proposal_bytes_max=10_000))
    await bench.begin()
    records: list[MetadataRecord] = [
        ConfigRecord(ResourceType.BROKER, "", f"name-{i:04}", "v" * 40) for i in range(500)
    ]
    task = await held_write(bench, lambda _i: Decision(None, list(records)))
    bench.quorum.release()
    bench.quorum.busy = True
    assert await outcome(task) is OutcomeUnknown
    assert 0 < len(bench.machine.image.configs.cluster()) < 500
    bench.quorum.busy = False
    await bench.settle(lambda: bench.driver.is_active)
    await bench.driver.stop()


async def test_a_busy_quorum_takes_nothing_and_the_controller_stays(bench: Bench) -> None:
    bench.quorum.busy = True
    task = asyncio.create_task(bench.driver.write(add_topic("a")))
    assert await outcome(task) is ErrorCode.REQUEST_TIMED_OUT
    bench.quorum.busy = False
    assert await bench.driver.write(add_topic("a")) == "a"


async def test_the_queue_of_writes_is_bounded() -> None:
    bench = Bench(config=DriverConfig(writes_max=3))
    await bench.begin()
    first = await held_write(bench, add_topic("a"))
    waiting = [asyncio.create_task(bench.driver.write(add_topic(f"w{i}"))) for i in range(5)]
    await asyncio.sleep(0.01)
    assert [await outcome(task) for task in waiting[3:]] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    bench.quorum.release()
    assert [await outcome(task) for task in [first, *waiting[:3]]] == ["a", "w0", "w1", "w2"]
    await bench.driver.stop()


async def test_a_waiter_that_went_away_is_not_decided_for(bench: Bench) -> None:
    first = await held_write(bench, add_topic("a"))
    gone = asyncio.create_task(bench.driver.write(add_topic("gone")))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    bench.quorum.release()
    await first
    assert await bench.driver.write(names_seen) == ["a"]


async def test_stopping_answers_everybody() -> None:
    bench = Bench()
    await bench.begin()
    sent = await held_write(bench, add_topic("a"))
    waiting = asyncio.create_task(bench.driver.write(add_topic("b")))
    await asyncio.sleep(0.01)
    await bench.driver.stop()
    assert await outcome(sent) is OutcomeUnknown
    assert await outcome(waiting) is ErrorCode.NOT_CONTROLLER


async def test_a_topic_costs_no_more_beside_a_thousand(bench: Bench) -> None:
    random, image, costs = rng(), with_brokers(3), []
    for i in range(1000):
        request = create_topics(new_topic(f"topic-{i}", 1, 3))
        with counted_calls() if i % 100 == 99 else nullcontext() as spent:
            image = replayed(image, decide_create_topics(image, request, bench.policy, random).records)
        if spent is not None:
            costs.append(spent.calls)
    assert image.topics.partition_count == 1000
    assert max(costs) < 3 * costs[0], costs
