"""The scenario: three controllers and three or four brokers, unchanged, under faults and under clients' eyes.

A run has three parts. The cluster comes up and makes its topics. Faults happen for some seconds. Then all is healed,
and within a bound each producer must be acknowledged again, the ISR be whole, and consumers have read all there is.
In some runs one broker's disk is stuck for long after that: the others must serve meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from broker.config import BrokerConfig
from broker.coordination.transactions.values import LAST_EPOCH
from broker.node import BrokerNode
from common.errors import ErrorCode, ProtocolError, StorageFailure
from common.ports import Address, Ports
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.features import INITIAL_LEVELS, TRANSACTION_VERSION
from kraft.topic_names import GROUP_TOPIC
from object_store.store import ObjectStore
from tests.sim import nemesis, tenants
from tests.sim.ambush import DeathsInRegistration, DivergingLeader, LateAlterPartition
from tests.sim.bucket import Bucket
from tests.sim.client_links import ClusterLinks
from tests.sim.clients import Consumer, GroupMember, IdempotentProducer, OffsetReader
from tests.sim.cluster_settings import (
    CLIENT_PORT,
    CONTROLLER_COUNT,
    MIN_INSYNC,
    broker_settings,
    caring,
    controller_name,
    controller_settings,
    watching,
)
from tests.sim.cluster_watch import ClusterWatch
from tests.sim.counted_work import COUNTED_EVERY, WorkCount
from tests.sim.historian import Archivist, Historian, StubbornProducer
from tests.sim.history import History
from tests.sim.invariants import PowerPromise
from tests.sim.loop import MS, SimLoop, SimulationFailure
from tests.sim.nemesis import Fault, Nemesis
from tests.sim.operator import Operator
from tests.sim.plan import FAULTS_MS, Plan, draw_plan
from tests.sim.report import Report
from tests.sim.rewriter import Rewriter
from tests.sim.settling import Settling
from tests.sim.stuck_storage import STUCK_S, SimWatchdog
from tests.sim.tier_watch import Intent, TierWatch
from tests.sim.topic_making import make_topics
from tests.sim.transaction_history import TransactionHistory
from tests.sim.transaction_load import TransactionLoad, last_epoch
from tests.sim.transaction_watch import TransactionWatch
from tests.sim.world import WALL_START_MS, Main, World, collect_dead, handled_cancellation, no_collection
from tiering.bucket.keys import TierRoot

COMES_UP_S = 12.0
SERVES_AGAIN_S = 8.0
SETTLES_S = 8.0
TRANSACTIONS_SETTLE_S = 25.0  # a marker on a connection that is dead without a sign is sent again after 10 s
ENDED_WITHIN_S = STUCK_S + 3.0  # its watchdog ends a broker whose disk is stuck
MOVED_WITHIN_S = 20.0
TIER_SETTLES_S = 25.0  # a clock that jumped by seconds makes deletions and sweeps wait that long
LOOK_S = 0.1
PROBE_S = 0.5
SLEEP_S = 1.5  # of a producer whose last batch is in the tier alone most of the time


class NodeStopped(Exception):
    """A node found that it must not go on, and said why."""


class NotServing(SimulationFailure): ...


class Cluster:
    """All nodes and clients of one run. `controller_change` and `broker_change` make other settings of theirs."""

    def __init__(
        self,
        plan: Plan,
        *,
        keep_trace: bool = False,
        controller_change: Callable[[ControllerConfig], ControllerConfig] = lambda config: config,
        broker_change: Callable[[BrokerConfig], BrokerConfig] = lambda config: config,
    ) -> None:
        self.plan, self.history = plan, History()
        self._controller_change = controller_change
        self.world = World(plan.seed, keep_trace=keep_trace)
        self.world.tolerates = self._tolerates
        self.brokers = {name: number for number, name in enumerate(plan.broker_names)}
        self.controllers = [controller_name(number) for number in range(CONTROLLER_COUNT)]
        self.promise = PowerPromise(MIN_INSYNC, flushes_each=plan.flushes_each)
        lossy = [plan.topic] if plan.loses_data else []
        self.watch = ClusterWatch(self.world, self.history, self.brokers, self.controllers, self.promise, lossy)
        self.bucket = Bucket(self.world.scheduler, self.world.stream("bucket"), WALL_START_MS)
        self.watch.tier = self._tier_watch() if plan.tier is not None else None
        if self.watch.tier is not None:
            self.history.explains = self.watch.tier.explains
        self.bootstrap: dict[int, Address] = {b: (name, CLIENT_PORT) for name, b in self.brokers.items()}
        first = plan.topic_partitions[0]
        self.diverging = DivergingLeader(
            self.world, plan.broker_names, self.controllers, first, lambda: self.watch.tier_end(first)
        )
        self.settling = Settling(plan, self.world, self.watch, self.history)
        self.transactions = self._transaction_load() if plan.transactions is not None else None
        self.work = WorkCount([*self.brokers, *self.controllers])
        self._add_nodes()
        self.change_brokers(broker_change)
        self.world.watch(self.watch.ran)
        self.world.on_death = self._died
        self.dogs = {name: SimWatchdog(self.world, name) for name in self.brokers} if plan.watched else {}

    def _add_nodes(self) -> None:
        plan = self.plan
        for number, name in enumerate(self.controllers):
            controller = controller_settings(number, snapshots=plan.snapshots, piece=plan.piece)
            if plan.tenant or plan.begins_with is not None:
                level = INITIAL_LEVELS[TRANSACTION_VERSION] if plan.begins_with is None else plan.begins_with
                controller = tenants.beginning_with(controller, has_tenant=plan.tenant, transaction_version=level)
            controller = caring(controller) if plan.health else controller
            controller = self._controller_change(controller)
            self.world.add_node(name, self._main(lambda ports, fail, c=controller: ControllerNode(ports, c, fail)))
        for name in self.brokers:
            self.world.add_node(name, self._idle)
        self.world.add_node("producer", self._producer)
        if self.transactions is not None:
            self.transactions.add_nodes()
        else:
            self.world.add_node("consumer", self._consumer)
            self.world.add_node("members", self._members)
        if plan.moves:
            self.world.add_node("operator", self._operator)
        if plan.tenant:
            self.asks("mover", tenants.MOVE)
        if plan.begins_with is not None:
            self.asks("raiser", tenants.RAISE, 1)
        if plan.tier is not None:
            self.world.add_node("historian", self._historian)
            self.world.add_node("archivist", self._archivist)
            if plan.tier.rewrites:
                self.world.add_node("rewriter", self._rewriter)
        if plan.loses_data:
            self.world.add_node("stubborn", self._stubborn)

    async def _idle(self, ports: Ports) -> None:
        """A broker before it has its settings."""

    def change_brokers(self, change: Callable[[BrokerConfig], BrokerConfig]) -> None:
        """Brokers have these settings from their next life on."""
        plan = self.plan
        for name, broker in self.brokers.items():
            rack = f"rack-{broker % 2}" if plan.racks else ""
            chunk_bytes = plan.tier.chunk_bytes if plan.tier is not None else 0
            config = broker_settings(
                broker, rack, plan.segment_bytes, flushes_each=plan.flushes_each, chunk_bytes=chunk_bytes
            )
            config = watching(config) if plan.health else config
            config = change(tenants.in_its_cell(config) if plan.tenant else config)
            main = self._main(lambda ports, fail, c=config: self._broker(ports, c, fail))
            self.world.nodes[name].main = main

    def _broker(self, ports: Ports, config: BrokerConfig, fail: Callable[[str], None]) -> BrokerNode:
        node = self.world.node_of(asyncio.get_running_loop())
        loop, life = node.loop, node.life_count
        assert loop is not None
        chance = self.world.stream(f"{node.name}/bucket/{life}")

        async def open_bucket(uri: str) -> ObjectStore:
            return self.bucket.client(node.name, loop, chance)

        return BrokerNode(ports, config, fail, open_bucket)

    def _tier_watch(self) -> TierWatch:
        bucket, watch, brokers = self.bucket, self.watch, self.brokers

        def intent(name: str) -> Intent:
            hosted = self.world.nodes[name].program.partitions
            return Intent(brokers[name], {(p.topic, p.index): p.leader_epoch for p in hosted if p.is_leader})

        bucket.intent = intent
        tier = TierWatch(
            bucket, watch.committed, watch.coverage, self._root, self.world.trace, lossy=self.plan.loses_data
        )
        tier.records.emptied = watch.tier_emptied
        return tier

    def _transaction_load(self) -> TransactionLoad:
        told, watch = TransactionHistory(), self.watch
        seen = watch.transactions = TransactionWatch(
            self.history, told, watch.committed, watch.coverage, self.world.trace, self.plan.names
        )
        seen.decisions.is_gone = lambda key: key[0].startswith(self.plan.names.passing) and watch.is_deleted(key[0])
        seen.offsets.holds = lambda group, index: tenants.keeper(watch.newest, group) == index
        return TransactionLoad(self.world, self.plan, self.history, told, seen, self.bootstrap)

    def _root(self) -> TierRoot:
        return TierRoot(self.watch.newest.cluster_id or "unknown")

    def _main(self, make: Callable[..., Any]) -> Main:
        async def main(ports: Ports) -> None:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[str] = loop.create_future()

            def fail(reason: str) -> None:
                if not ended.done():
                    ended.set_result(reason)

            node = self.world.node_of(loop)
            while node.name in self.dogs and node.device.stuck:  # noqa: ASYNC110  as a start probes its disk
                await asyncio.sleep(PROBE_S)
            node.program = program = make(ports, fail)
            starting = loop.create_task(program.start())
            try:
                await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                raise NodeStopped(await ended)
            except asyncio.CancelledError:
                handled_cancellation()
                starting.cancel()
                await asyncio.wait([starting])
                await program.stop()
                raise

        return main

    def _tolerates(self, name: str, error: BaseException) -> bool:
        """A node may end by itself only for its disk's sake."""
        disk_failed = any(fault.target == name and fault.kind in nemesis.DISKS for fault in self.plan.faults)
        if isinstance(error, ProtocolError):
            return disk_failed and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        return disk_failed and isinstance(error, (NodeStopped, StorageFailure, OSError))

    def _died(self, name: str, power_lost: bool) -> None:
        broker = self.brokers.get(name)
        if broker is not None:
            self.watch.coverage.add("losses of power" if power_lost else "deaths")
            if power_lost:
                self.watch.power_lost(broker)
                registered = self.watch.newest.brokers.get(broker)
                self.promise.lost_power(broker, -1 if registered is None else registered.epoch)

    def _disk_fails(self, name: str, fails: bool) -> None:
        if name in self.brokers:
            self.watch.disk_fails(self.brokers[name], fails)

    def _may_lose_data(self, names: Sequence[str]) -> bool:
        return self.promise.allows([self.brokers[name] for name in names if name in self.brokers])

    # -- clients

    async def _producer(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.bootstrap, self.history, "producer")
        await make_topics(links, list(self.bootstrap), self.plan)
        partitions, idempotent = self.plan.plain_partitions, not self.plan.loses_data
        producer = IdempotentProducer(links, partitions, self.plan.pause_s, idempotent=idempotent)
        if self.plan.tier is None or self.transactions is not None:
            await producer.run()
            return
        links = ClusterLinks(ports, self.bootstrap, self.history, "sleepy producer")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(producer.run())
            tasks.create_task(IdempotentProducer(links, partitions, SLEEP_S, idempotent=idempotent).run())

    async def _consumer(self, ports: Ports) -> None:
        rack = "rack-1" if self.plan.racks else ""
        links = ClusterLinks(ports, self.bootstrap, self.history, "consumer")
        await Consumer(links, self.plan.topic_partitions, "consumer", rack).run()

    async def _members(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.bootstrap, self.history, "members")
        while self.plan.topic not in links.topic_ids:  # then there are brokers enough for the group's topic as well
            await links.pause()
            await links.refresh([self.plan.topic])
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                links = ClusterLinks(ports, self.bootstrap, self.history, f"member-{number}")
                member = GroupMember(links, self.plan.group, self.plan.topic_partitions)
                tasks.create_task(member.run())
                await asyncio.sleep(ports.random.uniform(0.5, 2.0))
            if self.plan.peeks:
                links = ClusterLinks(ports, self.bootstrap, self.history, "reader")
                tasks.create_task(OffsetReader(links, self.plan.group, self.plan.topic_partitions).run())

    async def _historian(self, ports: Ports) -> None:
        links, partitions = ClusterLinks(ports, self.bootstrap, self.history, "historian"), self.plan.topic_partitions
        reader = None if self.transactions is None else self.transactions.reader(links, "historian")
        await Historian(links, partitions, reader).run()

    async def _archivist(self, ports: Ports) -> None:
        assert self.plan.tier is not None
        links = ClusterLinks(ports, self.bootstrap, self.history, "archivist")
        await Archivist(links, self.plan.topic_partitions, list(self.brokers.values()), self.plan.tier).run()

    async def _rewriter(self, ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        node = self.world.node_of(loop)
        store = self.bucket.client(node.name, loop, self.world.stream(f"{node.name}/bucket/{node.life_count}"))
        await Rewriter(ports.random, store, self._root, self.plan.topic, self.history).run()

    async def _stubborn(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.bootstrap, self.history, "stubborn")
        first = self.plan.topic_partitions[0]
        await StubbornProducer(links, first, lambda: self.brokers.get(self.diverging.first, -1)).run()

    async def _operator(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.bootstrap, self.history, "operator")
        while not self.history.commits:  # then the group's topic is there as well
            await links.pause()
        await Operator(links, self.plan.moved_partitions, list(self.brokers.values())).run()

    def asks(self, name: str, request: Any, version: int = 0) -> None:
        """A node that asks the brokers for it until one says yes."""

        async def ask(ports: Ports) -> None:
            await tenants.ask_until_done(ports, self.bootstrap, self.history, name, request, version)

        self.world.add_node(name, ask)

    # -- the run

    def count_work(self) -> None:
        """Fail the run when a callback of a broker or controller does too much."""
        self.world.scheduler.runs = self.work.run

    def run(self) -> None:
        world = self.world
        for name in world.nodes:
            world.start(name)
        self.within(COMES_UP_S, lambda: self._not_serving(0, 0))
        world.trace("the cluster is up")
        self._lie_in_wait()
        Nemesis(world, self.plan.faults, list(self.brokers), self._may_lose_data, self._disk_fails, self.bucket)
        healed_s = world.now_s + max([FAULTS_MS, *(f.at_ms + f.duration_ms for f in self.plan.lasting)]) / 1000
        world.run_for(FAULTS_MS / 1000)
        if self.plan.lasting:
            self._serve_meanwhile()
            world.run_for(healed_s - world.now_s)
        self._heal(world.nodes)
        world.trace("all is healed")
        self.history.all_healed = True
        acknowledged, commits = len(self.history.acknowledged), len(self.history.commits)
        self.within(SERVES_AGAIN_S, lambda: self._not_serving(acknowledged, commits))
        if self.transactions is not None:
            self.within(SERVES_AGAIN_S, self.transactions.since_now())
        self.history.stop_producing = True
        if self.plan.tenant:
            self.within(MOVED_WITHIN_S, lambda: tenants.not_moved(self.watch.newest))
        if (transactions := self.transactions) is not None:
            self.within(TRANSACTIONS_SETTLE_S, lambda: transactions.unsettled(self.watch.newest))
        self.within(SETTLES_S, self.settling.unsettled)
        self.within(SETTLES_S, self.settling.not_reported)
        if self.watch.tier is not None and not self.plan.loses_data:
            self.within(TIER_SETTLES_S, self.settling.tier_unsettled)
            self.history.settled = True
            self.within(SETTLES_S, self.settling.history_unread)

    def _lie_in_wait(self) -> None:
        world = self.world
        ambushes: list[Callable[[SimLoop], None]] = []
        if self.plan.ambush:
            ambushes.append(LateAlterPartition(world, self.brokers).ran)
        if self.plan.loses_data:
            ambushes.append(self.diverging.ran)
        if self.plan.deaths_in_registration:
            until_ns = world.scheduler.now_ns + FAULTS_MS * MS
            ambushes.append(DeathsInRegistration(world, self.brokers, lambda: self.watch.newest, until_ns).ran)
        if ambushes:
            world.watch(*ambushes)

    def _heal(self, names: Iterable[str]) -> None:
        for name in names:
            self.world.resume(name)
            self.world.start(name)

    def _serve_meanwhile(self) -> None:
        """All faults are healed but those that last: the others serve without the broker that its watchdog ends."""
        lasting = {fault.target for fault in self.plan.lasting}
        self._heal(name for name in self.world.nodes if name not in lasting)
        stuck = frozenset(number for name, number in self.brokers.items() if name in lasting)
        acknowledged, commits = len(self.history.acknowledged), len(self.history.commits)
        self.within(ENDED_WITHIN_S + SERVES_AGAIN_S, lambda: self._not_serving(acknowledged, commits, stuck))

    def within(self, seconds: float, problem: Callable[[], str]) -> None:
        deadline = self.world.now_s + seconds
        while found := problem():
            if self.world.now_s >= deadline:
                raise NotServing(f"{found}, {seconds} s after it should have been well")
            self.world.run_for(LOOK_S)
            if self.history.impossible:
                raise SimulationFailure(self.history.impossible[0])

    def _not_serving(self, acknowledged: int, commits: int, stuck: frozenset[int] = frozenset()) -> str:
        """Partitions that only a stuck broker may lead safely are not asked to serve."""
        served = {item.partition for item in self.history.acknowledged[acknowledged:]}
        for partition in self.plan.topic_partitions:
            if partition not in served and not self.watch.waits_for(partition, stuck):
                return f"nothing is acknowledged in {partition[0]}-{partition[1]}"
        commits_wait = self.watch.waits_for((GROUP_TOPIC, 0), stuck)
        return "" if commits_wait or len(self.history.commits) > commits else "the group commits nothing"


def run_plan(
    plan: Plan,
    *,
    keep_trace: bool = False,
    counts_work: bool | None = None,
    make: Callable[..., Cluster] = Cluster,
) -> Report:
    """One run from a plan; what goes wrong is in the report. Work is counted as the seed says, or as told."""
    report, begin = Report(plan), time.perf_counter()
    with no_collection():
        cluster = make(plan, keep_trace=keep_trace)
        world = cluster.world
        if plan.seed % COUNTED_EVERY == 0 if counts_work is None else counts_work:
            cluster.count_work()
        last = LAST_EPOCH if plan.transactions is None else plan.transactions.last_epoch
        with world.heard_logs(), last_epoch(last):
            try:
                cluster.run()
            except Exception as error:
                report.failure = f"{type(error).__name__}: {error}"
                world.trace(f"FAILURE {report.failure}")
        report.trace_hash, report.steps, report.virtual_s = world.trace_hash, world.scheduler.steps, world.now_s
        report.acknowledged, report.shown = len(cluster.history.acknowledged), len(cluster.history.shown)
        report.coverage = cluster.watch.coverage.counts + cluster.history.counts
        report.coverage["crashes of their own"] += world.crash_count
        report.coverage["ended by their watchdogs"] += sum(len(dog.ended) for dog in cluster.dogs.values())
        report.coverage["terms"] += cluster.watch.metadata.terms
        report.trace = world.trace_lines or []
        report.costliest = cluster.work.costliest_is
        world.close()
        del cluster, world
        collect_dead()
    report.wall_s = time.perf_counter() - begin
    return report


def run_seed(
    seed: int,
    *,
    faults: Sequence[Fault] | None = None,
    keep_trace: bool = False,
    counts_work: bool | None = None,
    transactions: bool | None = None,
) -> Report:
    """`faults` replace those that the seed draws. `transactions`: whether there are, whatever the seed says."""
    plan = draw_plan(seed, transactions=transactions)
    plan = plan if faults is None else replace(plan, faults=tuple(faults))
    return run_plan(plan, keep_trace=keep_trace, counts_work=counts_work)
