"""An active controller's view of its brokers: sessions, probes and heartbeats, over a fake quorum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.ports import Address
from kraft.controller.liveness import BrokerLiveness, LivenessConfig
from kraft.controller.policy import ControllerPolicy
from tests.kraft.fake_quorum import Bench
from tests.kraft.images import heartbeat, registration


class Doors:
    """A network on which brokers are only knocked at; `gone` names the ports that refuse."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.knocks: list[int] = []

    async def connect(self, address: Address) -> Doors:
        self.knocks.append(address[1])
        if address[1] in self.gone:
            raise ConnectionRefusedError
        return self

    def abort(self) -> None: ...


class LiveBench(Bench):
    def __init__(self, config: LivenessConfig, policy: ControllerPolicy | None = None) -> None:
        super().__init__(policy)
        self.doors = Doors()
        self.ports = replace(self.ports, network=self.doors)  # type: ignore[arg-type]
        self.liveness = BrokerLiveness(self.ports, self.quorum, self.driver, self.policy, config, "PLAINTEXT")
        self.on_active = self.liveness.became_active

    async def begin(self) -> None:
        self.liveness.start()
        await super().begin()

    async def stop(self) -> None:
        await self.liveness.stop()
        await self.driver.stop()
        assert not self.fatal

    async def join(self, broker_id: int) -> Any:
        request = registration(broker_id, cluster_id=self.machine.image.cluster_id)
        reply = await self.liveness.register(request)
        assert reply.error_code == 0
        return await self.beat(broker_id)

    async def beat(self, broker_id: int, **changed: Any) -> Any:
        return await self.liveness.heartbeat(heartbeat(self.machine.image, broker_id, **changed), broker_id)

    def is_fenced(self, broker_id: int) -> bool:
        return self.machine.image.brokers[broker_id].fenced


async def live_bench(
    session_s: float = 0.15, suspicion_s: float = 0.03, policy: ControllerPolicy | None = None
) -> LiveBench:
    bench = LiveBench(LivenessConfig(session_s, suspicion_s), policy)
    await bench.begin()
    for broker_id in range(3):
        await bench.join(broker_id)
    return bench
