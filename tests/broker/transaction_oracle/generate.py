"""Asks Apache Kafka every question in every state: `python -m tests.broker.transaction_oracle.generate JARS`.

JARS is a directory with the jars of org.apache.kafka:kafka_2.13:4.2.0 and of what it needs, as Maven fetches them:
`mvn dependency:copy-dependencies`. Runs two nodes, of which the second then stops, and writes `answers.txt` beside
this file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.embedded import free_ports
from bench.peers import CLUSTER_ID
from common.machine import MachineClock
from records.builder import build_batch
from records.record import Record
from tests.broker.gate_oracle.generate import connected
from tests.broker.gate_oracle.things import message
from tests.broker.tenant_lab import Wire
from tests.broker.transaction_oracle.asking import ask_all, write
from tests.broker.transaction_oracle.client import Stage, StageClock
from tests.broker.transaction_oracle.stage import (
    IDS,
    NOW_MS,
    USED_IDS,
    are_led,
    create_topics,
    have_coordinators,
    planted,
    until,
)
from wire.codec import decode_response, encode_request

HERE = Path(__file__).parent
PLANTED_AT_ONCE = 250
ADMINISTRATOR = "__admin_client"
"""The name of clients whom Apache Kafka lets write to internal topics."""


class Nodes:
    """Node 0 is controller and broker, node 1 a broker."""

    def __init__(self, jars: str, folder: Path) -> None:
        self._java = ["java", "-Xmx768M", "-cp", f"{jars}/*"]
        self._folder = folder
        self._port = free_ports(3)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def format(self) -> None:
        controller = self._port + 2
        common = {
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
            "default.replication.factor": "1",
            "log.segment.bytes": "1048576",
            "log.index.size.max.bytes": "65536",
        }
        for node in (0, 1):
            own = {"node.id": str(node), "log.dirs": f"{self._folder}/data-{node}"}
            listeners = f"PLAINTEXT://127.0.0.1:{self._port + node}"
            if node == 0:
                own |= {"process.roles": "broker,controller"}
                listeners += f",CONTROLLER://127.0.0.1:{controller}"
            else:
                own |= {"process.roles": "broker"}
            own["listeners"] = listeners
            path = self._folder / f"{node}.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in (common | own).items()))
            line = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", path.name]
            subprocess.run(line, cwd=self._folder, check=True, capture_output=True)

    async def start(self, node: int) -> Wire:
        self._run(node)
        return await self.connect(node)

    def _run(self, node: int) -> None:
        line = [*self._java, "kafka.Kafka", f"{node}.properties"]
        quiet = subprocess.DEVNULL
        self._processes[node] = subprocess.Popen(line, cwd=self._folder, stdout=quiet, stderr=quiet)

    async def connect(self, node: int) -> Wire:
        return await connected(self._port + node)

    async def stop(self, node: int) -> None:
        process = self._processes.pop(node)
        process.terminate()
        await asyncio.to_thread(process.wait)

    async def stop_all(self) -> None:
        for node in list(self._processes)[::-1]:
            await self.stop(node)


async def plant(wire: Wire) -> None:
    """Write the records of ids that have been used before, which the coordinator reads when it starts anew."""
    found = planted()
    for at in range(0, len(found), PLANTED_AT_ONCE):
        records = found[at : at + PLANTED_AT_ONCE]
        batch = build_batch([Record(0, NOW_MS, record.key, record.value) for record in records])
        partition = {"index": 0, "records": bytes(batch)}
        request = message(
            "Produce", transactional_id=None, acks=-1, timeout_ms=5_000,
            topic_data=[{"name": "__transaction_state", "partition_data": [partition]}],
        )  # fmt: skip
        payload = await wire.send(encode_request(request, 12, 7, ADMINISTRATOR))
        assert payload is not None
        told = decode_response(request.API_KEY, 12, payload)[1]
        assert not told.responses[0].partition_responses[0].error_code, told


async def ask(nodes: Nodes) -> None:
    wire = await nodes.start(0)
    await have_coordinators(wire)
    await plant(wire)
    await nodes.stop(0)
    wire = await nodes.start(0)
    await have_coordinators(wire)
    (await nodes.start(1)).close()
    await create_topics(wire)
    await nodes.stop(1)
    await until(lambda: are_led(wire, leaders={0, -1}))

    async def connect() -> Wire:
        return await nodes.connect(0)

    # One state after another: where leaders ask a coordinator about several batches at once, what its refusal becomes
    # depends on the version of the request that was first.
    stage = Stage(connect, connect, StageClock(MachineClock().wall_ms, asyncio.sleep), iter(IDS), iter(USED_IDS))
    write(await ask_all(stage, at_once=1), HERE / "answers.txt")


async def run(jars: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-transactions-") as folder:
        nodes = Nodes(jars, Path(folder))
        nodes.format()
        try:
            await ask(nodes)
        finally:
            await nodes.stop_all()


if __name__ == "__main__":
    asyncio.run(run(str(Path(sys.argv[1]).resolve())))
