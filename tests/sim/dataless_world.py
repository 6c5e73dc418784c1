"""A world of three controllers as they are and brokers without data, with long intervals, so that half an hour of it
costs seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from common.ports import Ports
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.image.metadata import MetadataImage
from kraft.observers.broker_lifecycle import LifecycleConfig
from kraft.quorum.node_config import NodeConfig
from tests.sim.cluster_settings import (
    CONTROLLER_COUNT,
    CONTROLLER_ID_BASE,
    broker_name,
    controller_name,
    controller_settings,
)
from tests.sim.dataless_broker import DatalessBroker
from tests.sim.loop import SimLoop, SimulationFailure
from tests.sim.world import World, collect_dead, handled_cancellation, no_collection

REPORT_S, FETCH_S = 5.0, 5.0
UP_S, LOOK_S = 120.0, 1.0
LIFECYCLE = LifecycleConfig(heartbeat_interval_s=4.0, call_timeout_s=1.0)


class DatalessWorld:
    """A subclass makes the brokers and says how the run goes. `newest` is the latest image of any controller."""

    BROKERS = 3

    def __init__(self, label: str, *, keep_trace: bool = False) -> None:
        self.world = World(label, keep_trace=keep_trace)
        self.controllers = [controller_name(number) for number in range(CONTROLLER_COUNT)]
        self.newest = MetadataImage()
        self._seen: dict[str, MetadataImage] = {}
        for number, name in enumerate(self.controllers):
            self.world.add_node(name, lambda ports, n=number: self._controller(ports, n))  # type: ignore[misc]
        for number in range(self.BROKERS):
            self.world.add_node(broker_name(number), lambda ports, b=number: self._broker(ports, b))  # type: ignore[misc]
        self.world.watch(self._ran)

    def make_broker(self, ports: Ports, broker: int, fatal: Callable[[str], None]) -> DatalessBroker:
        raise NotImplementedError

    async def serve(self, broker: int, program: DatalessBroker) -> None:
        """What a broker does for as long as it lives."""
        raise NotImplementedError

    def settings(self, number: int) -> ControllerConfig:
        """Of a controller."""
        config = controller_settings(number, snapshots=False, piece=100)
        times = NodeConfig(
            election_timeout_min_s=13.0,
            election_timeout_max_s=20.0,
            heartbeat_interval_s=4.0,
            leader_fallback_timeout_s=20.0,
        )
        return replace(
            config,
            liveness=LivenessConfig(session_timeout_s=20.0, suspicion_s=9.0),
            usage_report_interval_s=REPORT_S,
            quorum=replace(config.quorum, node=times, look_interval_s=1.0),
        )

    def advanced(self, before: MetadataImage, image: MetadataImage) -> None:
        """The newest image has changed: the place of invariants."""

    def course(self) -> None:
        """All nodes have started. Raises what is found to be wrong."""
        raise NotImplementedError

    # -- nodes

    async def _controller(self, ports: Ports, number: int) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        program = ControllerNode(ports, self.settings(number), ended.set_result)
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
        program = self.make_broker(ports, broker, ended.set_result)
        self.world.node_of(loop).program = program
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(program.run())
            tasks.create_task(self.serve(broker, program))
            raise SimulationFailure(await ended)

    def _ran(self, loop: SimLoop) -> None:
        node = self.world.nodes[loop.name]
        if node.loop is not loop or node.program is None or loop.name not in self.controllers:
            return
        image: MetadataImage = node.program.image
        if image is self._seen.get(loop.name) or image.offset < 0:
            return
        self._seen[loop.name] = image
        if image.offset > self.newest.offset:
            before, self.newest = self.newest, image
            self.advanced(before, image)

    # -- the course

    def run(self) -> None:
        """Raises what is found to be wrong."""
        with no_collection():
            try:
                with self.world.heard_logs():
                    for name in self.world.nodes:
                        self.world.start(name)
                    self.course()
            finally:
                self.world.close()
                collect_dead()

    def active(self) -> ControllerNode | None:
        """The active controller's program, as far as the newest image knows."""
        name = controller_name(self.newest.leader_id - CONTROLLER_ID_BASE)
        program: ControllerNode | None = self.world.nodes[name].program if name in self.controllers else None
        return program

    def kill_controller(self) -> str:
        """The active controller dies, and another one goes on. Returns the dead one's name, to start it again."""
        name = controller_name(self.newest.leader_id - CONTROLLER_ID_BASE)
        term = self.newest.epoch
        self.world.kill(name)
        self.within(UP_S, lambda: "" if self.newest.epoch > term else "no other controller is elected")
        return name

    def inactive_brokers(self) -> list[int]:
        return [number for number in range(self.BROKERS) if not self.newest.is_active(number)]

    def within(self, seconds: float, problem: Callable[[], str]) -> None:
        """Run until there is no `problem` any more."""
        deadline = self.world.now_s + seconds
        while found := problem():
            if self.world.now_s >= deadline:
                raise SimulationFailure(f"{found}, {seconds:.0f} s after it should have been well")
            self.world.run_for(LOOK_S)
