"""Sessions of brokers, the timer that fences, and leaders that return."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.batches import MetadataRecord
from kraft.controller.broker_removal import removal_piece
from kraft.controller.driver import ControllerDriver
from kraft.controller.leader_return import LeaderReturn, LeaderReturnConfig
from kraft.controller.liveness import LivenessConfig
from kraft.controller.policy import ControllerPolicy
from kraft.controller.sessions import BrokerSessions
from kraft.controller.stepper import Step, Stepper
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, PartitionChangeRecord
from tests.common.call_count import counted_calls
from tests.kraft.decisions import decide_create_topics
from tests.kraft.images import create_topics, new_topic, registration, rng
from tests.kraft.live_bench import LiveBench, live_bench
from tests.sim.loop import MS, SimLoop, run

pytestmark = pytest.mark.virtual_time

CONNECTION = 1


def test_silence_and_a_closed_connection_end_a_session_each_in_its_time() -> None:
    sessions = BrokerSessions(timeout_s=3.0, suspicion_s=0.3)
    sessions.heard(0, 10, 5, CONNECTION, now=100.0)
    sessions.heard(1, 11, 5, 2, now=101.0)
    assert sessions.expired(102.9) == []
    sessions.connection_closed(2, now=101.5)
    assert sessions.expired(101.81) == [(1, 11, Cause.CONNECTION_LOST)]
    sessions.heard(1, 11, 5, 3, now=101.7)
    assert sessions.expired(102.9) == []
    assert sessions.expired(103.0) == [(0, 10, Cause.SESSION_EXPIRED)]
    assert sessions.is_expired(0, 10, 103.0)
    assert not sessions.is_expired(0, 9, 103.0)


def test_a_connection_that_closes_after_the_broker_was_heard_on_another_means_nothing() -> None:
    sessions = BrokerSessions(3.0, 0.3)
    sessions.heard(0, 10, 5, CONNECTION, now=1.0)
    sessions.heard(0, 10, 5, 2, now=1.5)
    sessions.connection_closed(CONNECTION, now=1.6)
    assert sessions.expired(4.0) == []


def test_a_new_leadership_gives_everybody_a_whole_timeout_and_nobody_a_claim_to_its_id() -> None:
    sessions = BrokerSessions(3.0, 0.3)
    sessions.heard(0, 10, 5, CONNECTION, now=1.0)
    assert sessions.is_live(0, 2.0)
    sessions.restart([(0, 10), (1, 11)], now=3.9)
    assert sessions.is_suspected(0, 10, 4.0)
    assert sessions.expired(6.8) == []
    assert not sessions.is_live(0, 4.0)
    assert [broker for broker, _epoch, _cause in sessions.expired(6.95)] == [0, 1]


def test_what_others_have_seen() -> None:
    sessions = BrokerSessions(3.0, 0.3)
    sessions.heard(0, 10, 5, 1, now=1.0)
    sessions.heard(1, 10, 7, 2, now=1.0)
    assert sessions.all_have_seen(7, [1, 2])
    assert not sessions.all_have_seen(7, [0, 1])


def test_a_suspected_broker_that_is_found_gone_ends_at_once_and_a_heard_one_does_not() -> None:
    sessions = BrokerSessions(timeout_s=3.0, suspicion_s=0.3)
    sessions.heard(0, 10, 5, CONNECTION, now=1.0)
    sessions.found_gone(0, 10, now=1.1)  # not suspected
    assert sessions.expired(1.1) == []
    assert sessions.connection_closed(CONNECTION, now=1.2) == [(0, 10)]
    sessions.found_gone(0, 9, now=1.21)  # its earlier life
    assert sessions.is_suspected(0, 10, 1.21)
    sessions.found_gone(0, 10, now=1.22)
    assert sessions.expired(1.22) == [(0, 10, Cause.CONNECTION_LOST)]
    assert not sessions.is_suspected(0, 10, 1.22)


async def test_a_silent_broker_is_fenced_and_the_others_are_not() -> None:
    bench = await live_bench()
    async with asyncio.timeout(2):
        while not bench.is_fenced(2):
            await bench.beat(0)
            await bench.beat(1)
            await asyncio.sleep(0.02)
    assert not bench.is_fenced(0)
    assert not bench.is_fenced(1)
    assert bench.liveness.fenced_count == 1
    reply = await bench.beat(2)
    assert reply.is_fenced is False  # it is back at once
    await bench.stop()


async def test_a_fenced_broker_is_back_when_it_knows_of_its_fencing() -> None:
    bench = await live_bench()
    known = bench.machine.image.offset
    async with asyncio.timeout(2):
        while not bench.is_fenced(2):  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.02)
    offsets = (known, known, bench.machine.image.offset)
    replies = [await bench.beat(2, current_metadata_offset=offset) for offset in offsets]
    assert [reply.is_fenced for reply in replies] == [True, True, False]
    await bench.stop()


async def test_a_closed_connection_fences_long_before_the_silence_does() -> None:
    bench = await live_bench(session_s=60)
    bench.liveness.connection_closed(1)
    await bench.settle(lambda: bench.is_fenced(1))  # within less than a session
    bench.liveness.connection_closed(2)
    await bench.beat(2)  # on its new connection
    await asyncio.sleep(0.06)
    assert not bench.is_fenced(2)
    await bench.stop()


async def test_a_closed_connection_and_a_closed_door_fence_at_once() -> None:
    bench = await live_bench(session_s=60, suspicion_s=30)
    bench.liveness.connection_closed(1)
    bench.liveness.connection_closed(2)
    await bench.settle(lambda: len(bench.doors.knocks) > 2)  # who still listens may live, and is asked again
    assert not bench.is_fenced(1)
    bench.doors.gone = {9093}
    await bench.settle(lambda: bench.is_fenced(1))
    assert not bench.is_fenced(2)
    await bench.beat(2)
    await bench.stop()


async def test_heartbeats_are_answered_only_in_contact_with_a_majority() -> None:
    bench = await live_bench()
    bench.quorum.contact = False
    with pytest.raises(ProtocolError) as refused:
        await bench.beat(0)
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await bench.stop()


async def test_a_new_active_controller_begins_all_sessions_anew() -> None:
    bench = await live_bench(session_s=0.2)
    await asyncio.sleep(0.12)
    bench.quorum.lose()
    await asyncio.sleep(0.12)  # nobody could be heard for longer than a session
    bench.quorum.win()
    await bench.settle(lambda: bench.driver.is_active)
    await asyncio.sleep(0.05)
    assert not any(bench.is_fenced(broker) for broker in range(3))
    await bench.settle(lambda: all(bench.is_fenced(broker) for broker in range(3)))
    await bench.stop()


async def test_a_broker_that_died_with_the_last_controller_is_found_gone_by_the_next() -> None:
    bench = await live_bench(session_s=60)
    bench.quorum.lose()
    bench.doors.gone = {9093}
    bench.quorum.win()
    await bench.settle(lambda: bench.is_fenced(1))
    assert not bench.is_fenced(0)
    assert not bench.is_fenced(2)
    await bench.stop()


@pytest.mark.parametrize(("late_s", "stalls"), [(0.1, 3), (60.0, 1)])
def test_a_stall_of_the_controller_itself_fences_nobody(late_s: float, stalls: int) -> None:
    """A long one begins all sessions anew, however many follow; of a short one each broker gets the time back."""

    async def stall() -> None:
        bench = LiveBench(LivenessConfig(session_timeout_s=0.05, suspicion_s=0.02, late_s=late_s))
        await bench.begin()
        await bench.join(0)
        loop = cast(SimLoop, asyncio.get_running_loop())
        for _ in range(stalls):
            loop.stall(300 * MS)
            await asyncio.sleep(0.01)
            assert not bench.is_fenced(0)
        await bench.stop()

    run(stall())


def test_what_a_late_process_has_not_read_yet_counts_once_for_the_broker() -> None:
    sessions = BrokerSessions(1.0, 0.3)
    for broker in (0, 1):
        sessions.heard(broker, 7, 0, broker, 0.0)
    sessions.connection_closed(1, 0.9)
    sessions.found_gone(1, 7, 0.95)
    sessions.forgive_stall(0.2, 1.2)  # the timer of 1.0 fires
    assert [broker for broker, _epoch, _cause in sessions.expired(1.2)] == [1], "whose process is known to be gone"
    assert [broker for broker, _epoch, _cause in sessions.expired(1.5)] == [0, 1]
    sessions.forgive_stall(0.2, 1.5)
    assert sessions.is_expired(0, 7, 1.5), "once alone"
    sessions.heard(0, 7, 0, 0, 1.5)
    sessions.forgive_stall(0.2, 2.6)
    assert not sessions.is_expired(0, 7, 2.7)


async def test_an_id_is_refused_to_another_process_until_its_holder_is_gone() -> None:
    bench = await live_bench(session_s=0.3)
    request = registration(0, life=1, cluster_id=bench.machine.image.cluster_id)
    reply = await bench.liveness.register(request)
    assert reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    bench.liveness.connection_closed(0)
    reply = await bench.liveness.register(request)
    assert reply.error_code == 0
    await bench.stop()


async def test_a_stopping_broker_waits_until_the_others_know() -> None:
    bench = await live_bench(session_s=5)
    image = bench.machine.image
    request = create_topics(new_topic("t", 6, 3))
    await bench.driver.write(lambda i: decide_create_topics(i, request, bench.policy, rng()))
    for broker in (1, 2):
        await bench.beat(broker, current_metadata_offset=image.offset)
    reply = await bench.beat(0, want_shut_down=True)
    assert not reply.should_shut_down
    reply = await bench.beat(0, want_shut_down=True)
    assert not reply.should_shut_down  # 1 and 2 said that they are behind
    await bench.beat(1)
    await bench.beat(2)
    reply = await bench.beat(0, want_shut_down=True)
    assert reply.should_shut_down
    await bench.stop()


async def in_pieces() -> LiveBench:
    """A bench with a topic of six partitions, in which an event changes two at a time."""
    policy = ControllerPolicy(default_replication_factor=3, min_insync_replicas=2, piece_records_max=2)
    bench = await live_bench(session_s=5, policy=policy)
    request = create_topics(new_topic("t", 6, 3))
    await bench.driver.write(lambda i: decide_create_topics(i, request, bench.policy, rng()))
    return bench


async def finish_pieces(bench: LiveBench) -> None:
    left = -1
    while left:
        left = await bench.driver.write(lambda image: _next_piece(image, bench.policy))


async def test_a_stopping_broker_waits_until_the_others_know_the_last_piece() -> None:
    bench = await in_pieces()
    await bench.beat(0, want_shut_down=True)
    await bench.beat(1)
    await bench.beat(2)
    reply = await bench.beat(0, want_shut_down=True)
    assert not reply.should_shut_down
    await finish_pieces(bench)
    reply = await bench.beat(0, want_shut_down=True)
    assert not reply.should_shut_down
    await bench.beat(1)
    await bench.beat(2)
    reply = await bench.beat(0, want_shut_down=True)
    assert reply.should_shut_down
    await bench.stop()


async def test_a_fenced_broker_is_back_when_it_knows_the_last_piece() -> None:
    bench = await in_pieces()
    await bench.beat(0, want_fence=True)
    known = bench.machine.image.offset
    assert (await bench.beat(0)).is_fenced
    await finish_pieces(bench)
    assert (await bench.beat(0, current_metadata_offset=known)).is_fenced
    assert not (await bench.beat(0)).is_fenced
    await bench.stop()


async def test_leaderships_return_in_steps() -> None:
    bench = await live_bench(session_s=60)
    request = create_topics(new_topic("t", assignments=[[0, 1, 2]] * 25))
    await bench.driver.write(lambda i: decide_create_topics(i, request, bench.policy, rng()))
    await bench.beat(0, want_fence=True)
    await bench.beat(0)

    def leaders() -> list[int]:
        return [p.leader for p in bench.machine.image.topics.partitions()]

    assert leaders() == [1] * 25
    config = LeaderReturnConfig(interval_s=0.02, moves_per_step=10, step_pause_s=0.01)
    stepper = Stepper(bench.driver, LeaderReturn(bench.driver, bench.policy, bench.ports.clock, config))
    stepper.activity_changed(True)
    await asyncio.sleep(0.05)
    assert leaders() == [1] * 25  # in sync it is not
    steps: list[int] = []
    bench.machine.subscribe(lambda _delta, _image: steps.append(leaders().count(0)))
    await bench.driver.write(_isr_restored)
    await bench.settle(lambda: leaders() == [0] * 25)
    assert steps == [0, 10, 20, 25]  # once all are in sync, and then at each step
    await stepper.stop()
    await bench.stop()


class RestartBench:
    """Leaders that return every five minutes, or after a restart of the whole cluster, under `bench.driver`."""

    def __init__(self, bench: LiveBench) -> None:
        self.bench = bench
        config = LeaderReturnConfig(interval_s=300, restart_look_s=0.005, step_pause_s=0.001)
        returning = LeaderReturn(bench.driver, bench.policy, bench.ports.clock, config)
        bench.machine.subscribe(returning.applied)
        self.stepper = Stepper(bench.driver, returning)
        self.stepper.activity_changed(True)
        self.lives = 0

    async def restart(self, brokers: list[int]) -> None:
        """They stop in that order, the last one with its leaderships, and come back in it."""
        for broker in brokers:
            await self.bench.beat(broker, want_fence=True)
        self.lives += 1
        for broker in brokers:
            image = self.bench.machine.image
            request = registration(
                broker, self.lives, image.brokers[broker].epoch, cluster_id=self.bench.machine.image.cluster_id
            )
            self.bench.liveness.connection_closed(broker)
            assert (await self.bench.liveness.register(request)).error_code == 0
            await self.bench.beat(broker)

    def leaders(self) -> set[int]:
        return {partition.leader for partition in self.bench.machine.image.topics.partitions()}

    async def stop(self) -> None:
        await self.stepper.stop()
        await self.bench.stop()


async def restart_bench() -> RestartBench:
    bench = await live_bench(session_s=60)
    request = create_topics(new_topic("t", assignments=[[0, 1, 2], [1, 2, 0], [2, 0, 1]]))
    await bench.driver.write(lambda i: decide_create_topics(i, request, bench.policy, rng()))
    found = RestartBench(bench)
    await asyncio.sleep(0.02)
    return found


async def test_after_a_restart_of_all_leaderships_return_when_every_replica_is_in_sync() -> None:
    bench = await restart_bench()
    assert bench.leaders() == {0, 1, 2}
    await bench.restart([0, 1, 2])
    one = bench.leaders()
    assert len(one) == 1
    await asyncio.sleep(0.05)
    assert bench.leaders() == one  # the others are not in sync yet
    await bench.bench.driver.write(_isr_restored)
    await bench.bench.settle(lambda: bench.leaders() == {0, 1, 2})
    await bench.restart([2, 1, 0])  # and so it does the next time
    await bench.bench.driver.write(_isr_restored)
    await bench.bench.settle(lambda: bench.leaders() == {0, 1, 2})
    await bench.stop()


async def test_one_broker_after_another_is_a_restart_of_all_when_the_last_is_back() -> None:
    bench = await restart_bench()
    for broker in (0, 1, 2):
        await bench.restart([broker])
        await asyncio.sleep(0.05)
        assert broker not in bench.leaders()
        await bench.bench.driver.write(_isr_restored)
        await asyncio.sleep(0.05)
        assert (bench.leaders() == {0, 1, 2}) is (broker == 2)
    await bench.bench.driver.write(_isr_restored)
    await bench.bench.settle(lambda: bench.leaders() == {0, 1, 2})
    await bench.stop()


async def test_a_controller_that_takes_over_while_the_cluster_starts_knows_that_all_were_down() -> None:
    bench = await restart_bench()
    await bench.restart([0, 1, 2])
    bench.stepper.activity_changed(True)  # after all have registered
    await bench.bench.driver.write(_isr_restored)
    await bench.bench.settle(lambda: bench.leaders() == {0, 1, 2})
    await bench.stop()


class Standby:
    """The driver of a controller that follows another one's log."""

    def __init__(self, bench: LiveBench) -> None:
        self._bench = bench
        self.is_active = False
        self.asked = 0

    @property
    def image(self) -> MetadataImage:
        return self._bench.machine.image

    async def write(self, decide: Any) -> Step:
        self.asked += 1
        await asyncio.sleep(0)
        return Step()


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_restart_that_another_controller_has_seen_through_is_over_for_its_successor(*, is_whole: bool) -> None:
    bench = await restart_bench()
    standby = Standby(bench.bench)
    config = LeaderReturnConfig(interval_s=300, restart_look_s=0.001)
    returning = LeaderReturn(standby, bench.bench.policy, bench.bench.ports.clock, config)  # type: ignore[arg-type]
    bench.bench.machine.subscribe(returning.applied)
    successor = Stepper(standby, returning)
    await bench.restart([0, 1, 2])
    if is_whole:
        await bench.bench.driver.write(_isr_restored)
        await bench.bench.settle(lambda: bench.leaders() == {0, 1, 2})
    await bench.stepper.stop()
    standby.is_active = True
    successor.activity_changed(True)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not standby.asked
    if not is_whole:  # the restart goes on under the successor
        await bench.bench.driver.write(_isr_restored)
        await bench.bench.settle(lambda: standby.asked)
    await successor.stop()
    await bench.stop()


async def test_a_broker_that_stays_away_leaves_the_return_to_its_time() -> None:
    bench = await restart_bench()
    await bench.restart([0, 1, 2])
    await bench.bench.beat(0, want_fence=True)
    await bench.bench.driver.write(_isr_restored)
    await asyncio.sleep(0.05)
    assert len(bench.leaders()) == 1
    await bench.stop()


def _next_piece(image: MetadataImage, policy: ControllerPolicy) -> Decision[MetadataRecord, int]:
    records: list[MetadataRecord] = list(removal_piece(image, policy))
    return Decision(len(records), records)


def _isr_restored(image: MetadataImage) -> Decision[MetadataRecord, None]:
    changes: list[MetadataRecord] = [
        PartitionChangeRecord(p.topic_id, p.partition, isr=(1, 2, 0)) for p in image.topics.partitions()
    ]
    return Decision(None, changes)


async def test_connections_that_end_after_the_stop_are_nobodys_business() -> None:
    bench = await live_bench()
    await bench.stop()
    before = asyncio.all_tasks()
    bench.liveness.connection_closed(0)
    assert asyncio.all_tasks() == before


async def test_a_cluster_without_brokers_has_no_leaders_to_return() -> None:
    bench = LiveBench(LivenessConfig(60, 30))
    await bench.begin()
    restarts = RestartBench(bench)
    with counted_calls(of=ControllerDriver.write) as asked:
        async with asyncio.timeout(5):
            for _ in range(200):
                await asyncio.sleep(0)
    assert asked.calls == 0
    await restarts.stop()
