"""Topics for the tier's benchmark: made, filled, and watched on their way into the object store.

Works the same way with Tidelog and with Apache Kafka: by the protocol alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient

from bench.demo.history import History, look

ROOT = Path(__file__).resolve().parents[2]
LOAD_TIMEOUT_S = 600
WAIT_S = 180.0
LOOK_S = 0.05
SETTLE_S = 1.0
TIERED = {"remote.storage.enable": "true"}
MIB = 1 << 20
COLD_SEGMENT = 8 * MIB


def run_load(module: str, kind: str, bootstrap: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A load as a process of its own; what it prints. RuntimeError when it fails or records are missing."""
    return finish_load(start_load(module, kind, bootstrap, arguments))


def start_load(module: str, kind: str, bootstrap: str, arguments: Mapping[str, Any]) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", module, kind, bootstrap, json.dumps(arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def finish_load(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, errors = process.communicate(timeout=LOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"a load failed: {errors[-800:]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    if found["errors"]:
        raise RuntimeError(f"a load lost {found['errors']} records")
    return found


class Topics:
    """One cluster's topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(
        self,
        partitions: int,
        replicas: int,
        config: Mapping[str, str] | None = None,
        placed: list[list[int]] | None = None,
    ) -> str:
        """`placed`: the brokers of each partition's replicas."""
        name = f"tier-{uuid.uuid4().hex[:8]}"
        settings = {"min.insync.replicas": "1" if replicas == 1 else "2", **(config or {})}
        topic = (
            NewTopic(name, partitions, replicas, config=settings)
            if placed is None
            else NewTopic(name, partitions, replica_assignment=placed, config=settings)
        )
        self._admin.create_topics([topic])[name].result(60)
        time.sleep(SETTLE_S)
        return name

    def fill(self, topic: str, partitions: int, size_bytes: int, record_bytes: int, batch: int = 1_000_000) -> None:
        arguments = {"topic": topic, "partitions": partitions, "records": max(1, size_bytes // record_bytes)}
        run_load("bench.tier.loads", "fill", self.bootstrap, arguments | {"size": record_bytes, "batch": batch})

    def configure(self, topic: str, **settings: str) -> None:
        """Names with underscores instead of dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def delete(self, *names: str) -> None:
        for future in self._admin.delete_topics(list(names)).values():
            future.result(60)

    def wait(self, topic: str, partitions: int, reached: Callable[[History], bool]) -> History:
        """Until `reached`. TimeoutError says how far it came."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            deadline = time.monotonic() + WAIT_S
            while not reached(found := look(client, topic, partitions)):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the tier came no further than {found}")
                time.sleep(LOOK_S)
            return found
        finally:
            client.close()

    def wait_cold(self, topic: str, partitions: int, record_bytes: int) -> History:
        """Until the brokers hold nothing of a topic with `cold_config` but segments that are not closed yet."""
        most = partitions * COLD_SEGMENT // record_bytes
        return self.wait(topic, partitions, lambda found: found.local <= most)


def cold_config() -> dict[str, str]:
    """Of a topic whose closed segments leave the brokers as soon as they are in the tier."""
    return TIERED | {"segment.bytes": str(COLD_SEGMENT), "local.retention.bytes": "1", "local.retention.ms": "1000"}
