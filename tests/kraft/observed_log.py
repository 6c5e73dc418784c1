"""Controllers without a network: links that answer an observer from state machines in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from common.pacing import Pacer
from common.ports import Address
from kraft.batches import Batch, BatchHeader, BatchKind, MetadataRecord, encode_batch
from kraft.controller.metadata_fetch import MetadataFetch
from kraft.controller.state_machine import MetadataStateMachine, Verdict
from kraft.links import Link
from kraft.metadata_log import MetadataLog
from kraft.records import ClusterRecord, LeaderChangeRecord, TopicRecord
from wire.client import ConnectionLost


class Writer:
    """Makes committed batches, and hands each to the machines that are to know it."""

    def __init__(self, cluster_id: str = "AAAAAAAAAAAAAAAAAAAAAA") -> None:
        self.batches: list[bytes] = []
        self._state = MetadataStateMachine(MetadataLog())
        self._epoch = 0
        self._sequence = 0
        self.lead(100)
        self.write([ClusterRecord(cluster_id)])

    @property
    def end(self) -> int:
        return self._state.image.next_offset

    def lead(self, leader: int) -> None:
        self._epoch += 1
        self._leader = leader
        self._batch([LeaderChangeRecord(leader, self._epoch)], BatchKind.LEADER_CHANGE)

    def write(self, records: list[MetadataRecord]) -> None:
        self._batch(records, BatchKind.RECORDS)

    def topic(self, name: str) -> None:
        self.write([TopicRecord(name, name.encode().ljust(16, b"."))])

    def _batch(self, records: list[MetadataRecord], kind: BatchKind) -> None:
        self._sequence += 1
        header = BatchHeader(self._epoch, self._leader, self._sequence, self.end, kind)
        data = encode_batch(Batch(header, records))
        assert self._state.apply(0, data).verdict is Verdict.APPLIED
        self.batches.append(data)


class Controller:
    """Knows the first `known` batches of its writer."""

    def __init__(self, writer: Writer, batches_max: int = 20_000) -> None:
        self.writer = writer
        self.machine = MetadataStateMachine(MetadataLog(batches_max))
        self.known = 0
        self.up = True
        self.in_touch = True
        self.fetches: list[int] = []
        self.snapshots_sent = 0
        self.fetch = MetadataFetch(self.machine, Pacer(), lambda: self.in_touch)

    def learn(self, count: int | None = None) -> None:
        end = len(self.writer.batches) if count is None else count
        for data in self.writer.batches[self.known : end]:
            assert self.machine.apply(0, data).verdict is Verdict.APPLIED
        self.known = end


class LocalLink:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.is_closed = False

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        if self.is_closed or not self._controller.up:
            raise ConnectionLost("down")
        await asyncio.sleep(0)
        if request.name == "FetchSnapshotRequest":
            self._controller.snapshots_sent += 1
            return self._controller.fetch.fetch_snapshot(request)
        self._controller.fetches.append(request.topics[0].partitions[0].fetch_offset)
        answer = await self._controller.fetch.fetch(request)
        if not self._controller.up:
            raise ConnectionLost("down")
        return answer

    def close(self) -> None:
        self.is_closed = True


class LocalLinks:
    """The controller with id N is at port N."""

    def __init__(self, controllers: dict[int, Controller]) -> None:
        self.controllers = controllers
        self.connects: list[int] = []

    @property
    def addresses(self) -> dict[int, Address]:
        return {node_id: ("local", node_id) for node_id in self.controllers}

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        self.connects.append(address[1])
        controller = self.controllers[address[1]]
        if not controller.up:
            raise ConnectionLost("refused")
        return LocalLink(controller)
