"""Thousands of partitions: brokers die, come back, and the active controller dies while the pieces of it are under way.

Three controllers as they are, and brokers without data. Nothing is slow here that time could show; so the work of
each callback is counted, and one that does what belongs in pieces fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.ports import Ports
from kraft.controller.node import ControllerNode
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from tests.sim.cluster_settings import (
    CONTROLLER_COUNT,
    CONTROLLER_ID_BASE,
    REPLICATION_FACTOR,
    broker_name,
    controller_name,
    controller_settings,
)
from tests.sim.cluster_watch import fingerprint
from tests.sim.counted_work import WorkCount
from tests.sim.dataless_broker import DatalessBroker
from tests.sim.invariants import InvariantBroken, MetadataAgrees
from tests.sim.loop import SimLoop, SimulationFailure
from tests.sim.world import World, collect_dead, handled_cancellation, no_collection

BROKERS = 4
TOPICS, PARTITIONS = 50, 100
PIECE = 100  # partitions in one commit: of many, so that much happens between the first one and the last
COMES_UP_S = 20.0
FENCED_WITHIN_S = 2.0
MOVED_WITHIN_S = 4.0
WHOLE_WITHIN_S = 15.0
LOOK_S = 0.05


class NotMoved(SimulationFailure): ...


class NeedlessElection(SimulationFailure): ...


class FleetRun:
    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.world = World(f"fleet {seed}", keep_trace=keep_trace)
        self.controllers = [controller_name(number) for number in range(CONTROLLER_COUNT)]
        self.brokers = {broker_name(broker): broker for broker in range(BROKERS)}
        self.work = WorkCount([*self.controllers, *self.brokers], takes_time=True)
        self.newest = MetadataImage()
        self.deposed = 0  # active controllers that were killed
        self._seen: dict[str, MetadataImage] = {}
        self._leaders: dict[int, int] = {}  # by term
        self._agree = MetadataAgrees()
        for number, name in enumerate(self.controllers):
            self.world.add_node(name, lambda ports, n=number: self._controller(ports, n))  # type: ignore[misc]
        for name, broker in self.brokers.items():
            self.world.add_node(name, lambda ports, b=broker: self._broker(ports, b))  # type: ignore[misc]
        self.world.watch(self._ran)
        self.world.scheduler.runs = self.work.run

    async def _controller(self, ports: Ports, number: int) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        settings = controller_settings(number, snapshots=False, piece=PIECE)
        program = ControllerNode(ports, settings, ended.set_result)
        await program.start()
        self.world.node_of(loop).program = program
        try:
            raise SimulationFailure(await ended)
        finally:
            handled_cancellation()
            await program.stop()

    async def _broker(self, ports: Ports, broker: int) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        program = DatalessBroker(ports, broker, ended.set_result)
        self.world.node_of(loop).program = program
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(program.run())
            if broker == 0:
                names = [f"t-{number:02}" for number in range(TOPICS)]
                tasks.create_task(program.create_topics(names, PARTITIONS, REPLICATION_FACTOR))
            raise SimulationFailure(await ended)

    # -- invariants

    def _ran(self, loop: SimLoop) -> None:
        node = self.world.nodes[loop.name]
        if node.loop is not loop or node.program is None or loop.name not in self.controllers:
            return
        image: MetadataImage = node.program.image
        if image is self._seen.get(loop.name):
            return
        self._seen[loop.name] = image
        if image.offset < 0:
            return
        if self._leaders.setdefault(image.epoch, image.leader_id) != image.leader_id:
            raise InvariantBroken(self, f"term {image.epoch} is led by {self._leaders[image.epoch]}, {image.leader_id}")
        if image.offset > self.newest.offset:
            before, self.newest = self.newest, image
            self._moved(before, image)

    def _moved(self, before: MetadataImage, image: MetadataImage) -> None:
        """A broker that may lead again is listed nowhere from before it was lost."""
        for broker in image.brokers:
            if image.is_active(broker) and not before.is_active(broker) and (count := len(listing(before, broker))):
                raise InvariantBroken(self, f"broker {broker} is unfenced while {count} partitions list it")

    # -- the course

    def run(self) -> None:
        """Raises what is found to be wrong."""
        with no_collection():
            try:
                with self.world.heard_logs():
                    self._run()
            finally:
                self.hash = self.world.trace_hash
                self.world.close()
                collect_dead()

    def _run(self) -> None:
        world = self.world
        for name in world.nodes:
            world.start(name)
        self.within(COMES_UP_S, lambda: "" if len(self.newest.topics.ids) >= TOPICS else "topics are missing")
        self._settles()
        for lost, second in ((0, 1), (2, 3)):
            self._loses(lost)
            self._kills_controller()
            self._moves(lost)
            for name in (*self.controllers, broker_name(lost)):
                world.start(name)
            self._settles()
            self._loses(second)
            world.start(broker_name(second))
            self._moves(second)
            self._settles()
        if len(self._leaders) > 1 + self.deposed:
            raise NeedlessElection(f"{self.deposed} active controllers died, and {len(self._leaders)} were elected")

    def _loses(self, broker: int) -> None:
        """Until the metadata say so, and no longer."""
        self.world.kill(broker_name(broker))
        if not self.world.run_until(lambda: not self.newest.is_active(broker), FENCED_WITHIN_S):
            raise NotMoved(f"broker {broker} is not fenced {FENCED_WITHIN_S} s after it died")
        left = len(listing(self.newest, broker))
        if not left:
            raise SimulationFailure(f"nothing is left to do when broker {broker} is seen to be fenced")
        self.world.trace(f"broker {broker} is fenced, {left} partitions list it")

    def _kills_controller(self) -> None:
        self.deposed += 1
        self.world.kill(controller_name(self.newest.leader_id - CONTROLLER_ID_BASE))

    def _moves(self, lost: int) -> None:
        def problem() -> str:
            image = self.newest
            left = sum(not image.is_active(p.leader) for p in image.topics.partitions())
            return f"{left} partitions have no leader after broker {lost} was lost" if left else ""

        self.within(MOVED_WITHIN_S, problem)

    def _settles(self) -> None:
        """Until all brokers are back and all replicas in sync, and everybody knows it."""
        self.within(WHOLE_WITHIN_S, self._not_whole)
        programs = [self.world.nodes[name].program for name in (*self.controllers, *self.brokers)]

        def problem() -> str:
            return (
                "" if {p.image.offset for p in programs} == {self.newest.offset} else "not all know the newest metadata"
            )

        self.within(WHOLE_WITHIN_S, problem)
        for name in (*self.controllers, *self.brokers):
            image: MetadataImage = self.world.nodes[name].program.image
            self._agree.saw(name, image.offset, fingerprint(image))
        again = decode_snapshot(encode_snapshot(self.newest))
        if again != self.newest:
            raise InvariantBroken(self, "the image is not what its records make")

    def _not_up(self) -> str:
        missing = [broker for broker in self.brokers.values() if not self.newest.is_active(broker)]
        return f"brokers {missing} are not active" if missing else ""

    def _not_whole(self) -> str:
        if missing := self._not_up():
            return missing
        left = sum(len(p.isr) < len(p.replicas) or p.leader not in p.isr for p in self.newest.topics.partitions())
        return f"{left} partitions are not whole" if left else ""

    def within(self, seconds: float, problem: Callable[[], str]) -> None:
        deadline = self.world.now_s + seconds
        while found := problem():
            if self.world.now_s >= deadline:
                raise NotMoved(f"{found}, {seconds} s after it should have been well")
            self.world.run_for(LOOK_S)


def listing(image: MetadataImage, broker: int) -> list[object]:
    return [p for p in image.topics.partitions() if broker in p.isr]
