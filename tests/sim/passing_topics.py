"""Topics that are made and deleted, one after another, while transactions write to them."""

from __future__ import annotations

from common.errors import ErrorCode
from common.ports import Ports
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.topic_making import make_topic
from tests.sim.transaction_history import Names, TransactionHistory
from wire.messages import DeleteTopicsRequest

LIFE_S = (0.3, 1.5)
PAUSE_S = 0.2


class PassingTopics:
    """A client that makes them. Writers go on with one until they notice that it is gone."""

    def __init__(self, links: ClusterLinks, told: TransactionHistory, names: Names, brokers: list[int]) -> None:
        self._links, self._told, self._names, self._brokers = links, told, names, brokers

    async def run(self, ports: Ports) -> None:
        links, number = self._links, 0
        while not links.history.commits:
            await links.pause()
        while not links.history.all_healed:
            number += 1
            name = f"{self._names.passing}{number}"
            await make_topic(links, self._brokers, name, 1, {"min.insync.replicas": "2"})
            await links.refresh([name])
            self._told.passing = name
            await links.pause(ports.random.uniform(*LIFE_S))
            await self._delete(name)
            links.history.counts["topics deleted in transactions"] += 1
            await links.pause(PAUSE_S)
        self._told.passing = ""
        for made in range(1, number + 1):  # a request that was given up may have made it again
            await self._delete(f"{self._names.passing}{made}")

    async def _delete(self, name: str) -> None:
        links, row = self._links, DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(topics=[row(name=name, topic_id=None)], topic_names=[], timeout_ms=1_000)
        while True:
            try:
                answer = await links.call(links.ports.random.choice(self._brokers), request, 6, 2.0)
            except Unreachable:
                await links.pause()
                continue
            if answer.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                return
            await links.pause()
