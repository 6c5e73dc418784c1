"""One node of Apache Kafka, broker and controller at once, in a folder of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.embedded import free_ports
from bench.peers import CLUSTER_ID, wait_serving


@contextmanager
def single_kafka(jars: Path, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its bootstrap address, once it serves. The log directory is `folder`/data; it has stopped in order afterwards.

    `settings` come to those of one node. CalledProcessError when the directory cannot be formatted.
    """
    port = free_ports(2)
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": f"{folder}/data",
        "offsets.topic.replication.factor": "1",
        **(settings or {}),
    }
    path = folder / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    java = ["java", "-Xmx512M", "-cp", f"{jars}/*"]
    quiet = subprocess.DEVNULL
    format_line = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)]
    subprocess.run(format_line, check=True, stdout=quiet, stderr=quiet)
    with subprocess.Popen([*java, "kafka.Kafka", str(path)], stdout=quiet, stderr=quiet) as process:
        try:
            bootstrap = f"127.0.0.1:{port}"
            wait_serving(bootstrap, 1)
            yield bootstrap
        finally:
            process.terminate()
