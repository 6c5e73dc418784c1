"""The simulated operator has the last word, though the network delivers what it gave up only after that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster import SETTLES_S, Cluster, run_plan
from tests.sim.loop import NS
from tests.sim.network import SimSocket
from tests.sim.plan import draw_plan
from wire.messages import AlterPartitionReassignmentsRequest

pytestmark = pytest.mark.simulation

HELD_S = 8.0  # the operator gives up and has its last word meanwhile
ENDS_AFTER_S = 0.5
KEY_BYTES = slice(4, 6)  # of a request's frame: its API key


class SlowFirstMove:
    """The operator's first reassignment is on its way for HELD_S, as on a link that sends everything again, and the end
    of its connection for longer: the broker has acted on the request by then."""

    def __init__(self, cluster: Cluster) -> None:
        self.arrives_s = 0.0
        self._world = cluster.world
        self._link: SimSocket | None = None
        cluster.world.fabric.holds = self._hold

    def _hold(self, socket: SimSocket, data: bytearray) -> int:
        if socket is self._link:
            return int((self.arrives_s + ENDS_AFTER_S - self._world.now_s) * NS)
        api_key = AlterPartitionReassignmentsRequest.API_KEY.to_bytes(2, "big")
        if self._link is not None or socket.loop.name != "operator" or data[KEY_BYTES] != api_key:
            return 0
        self._link, self.arrives_s = socket, self._world.now_s + HELD_S
        return int(HELD_S * NS)


class LateMoveCluster(Cluster):
    """Runs until that reassignment has arrived and had its effect."""

    def run(self) -> None:
        late = SlowFirstMove(self)
        super().run()
        assert 0 < self.world.now_s < late.arrives_s
        self.world.run_for(late.arrives_s + ENDS_AFTER_S - self.world.now_s)
        self.within(SETTLES_S, self.settling.unsettled)


@pytest.mark.parametrize("seed", range(2))
def test_a_late_request_does_not_undo_the_last_word(seed: int) -> None:
    plan = replace(draw_plan(seed), brokers=4, moves=True, faults=(), tier=None, ambush=False, tenant=False)
    assert run_plan(plan, make=LateMoveCluster).failure == ""
