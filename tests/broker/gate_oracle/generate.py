"""Asks Apache Kafka every question as every principal: `python -m tests.broker.gate_oracle.generate JARS`.

JARS is a directory with the jars of org.apache.kafka:kafka_2.13:4.2.0 and of what it needs (`bench.peers.kafka_jars`
fetches them). Runs one node with its StandardAuthorizer and writes `answers.txt` beside this file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.embedded import free_ports
from bench.peers import CLUSTER_ID
from tests.broker.gate_oracle.answers import ask_all, write
from tests.broker.gate_oracle.questions import QUESTIONS
from tests.broker.gate_oracle.rights import RIGHTS, user_of
from tests.broker.gate_oracle.scene import furnish, restorer
from tests.broker.tenant_lab import Wire
from wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

HERE = Path(__file__).parent
PASSWORD = "secret"
START_S = 60


@contextmanager
def kafka(jars: str, folder: Path) -> Iterator[dict[str, int]]:
    """A running node; ports of its listeners."""
    port = free_ports(3)
    ports = {"PLAINTEXT": port, "SASL_PLAINTEXT": port + 1, "CONTROLLER": port + 2}
    users = " ".join(f'user_{user_of(right)}="{PASSWORD}"' for right in RIGHTS)
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "0",
        "controller.quorum.voters": f"0@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": ",".join(f"{name}://127.0.0.1:{number}" for name, number in ports.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.dirs": f"{folder}/data",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "default.replication.factor": "1",
    }
    (folder / "node.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx512M", "-cp", f"{jars}/*"]
    format_line = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", "node.properties"]
    subprocess.run(format_line, cwd=folder, check=True, capture_output=True)
    node = subprocess.Popen(
        [*java, "kafka.Kafka", "node.properties"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield ports
    finally:
        node.terminate()
        node.wait()


async def connected(port: int) -> Wire:
    """As soon as the node listens."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return Wire(*await asyncio.open_connection("127.0.0.1", port))
            except OSError:
                await asyncio.sleep(0.2)


async def ask(ports: dict[str, int]) -> None:
    async def login(right: str) -> Wire:
        wire = await connected(ports["SASL_PLAINTEXT"])
        await wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        proof = f"\0{user_of(right)}\0{PASSWORD}".encode()
        answer = await wire.call(SaslAuthenticateRequest(auth_bytes=proof), 2)
        assert not answer.error_code, answer
        return wire

    anonymous = await connected(ports["PLAINTEXT"])
    ids = await furnish(anonymous, login)
    write(await ask_all(QUESTIONS, login, ids, restorer(anonymous, ids), {}), HERE / "answers.txt")


def main(jars: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-gates-") as folder, kafka(jars, Path(folder)) as ports:
        asyncio.run(ask(ports))


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
