"""librdkafka pushes its metrics to a broker, as all its clients do without being told, and an operator scrapes them."""

from __future__ import annotations

import asyncio
import time
import urllib.request
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from bench.embedded import EmbeddedCluster
from kraft.records import ResourceType
from tests.broker.tenant_lab import Wire
from wire.messages import IncrementalAlterConfigsRequest, ListConfigResourcesRequest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
SET, DELETE = 0, 1


def call(cluster: EmbeddedCluster, request: Any, version: int) -> Any:
    async def exchange() -> Any:
        host, port = cluster.bootstrap.split(",")[0].rsplit(":", 1)
        wire = Wire(*await asyncio.open_connection(host, int(port)))
        answer = await wire.call(request, version)
        wire.close()
        return answer

    return asyncio.run(exchange())


def alter(cluster: EmbeddedCluster, name: str, operation: int, **settings: str | None) -> None:
    configs = [
        _Resource.AlterableConfig(name=key.replace("_", "."), config_operation=operation, value=value)
        for key, value in settings.items()
    ]
    resource = _Resource(resource_type=ResourceType.CLIENT_METRICS, resource_name=name, configs=configs)
    answer = call(cluster, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert answer.responses[0].error_code == 0, answer


def listed(cluster: EmbeddedCluster) -> set[str]:
    answer = call(cluster, ListConfigResourcesRequest(resource_types=[ResourceType.CLIENT_METRICS]), 1)
    return {one.resource_name for one in answer.config_resources}


def series(cluster: EmbeddedCluster, client_id: str) -> list[str]:
    found: list[str] = []
    for node in cluster.nodes():
        if node["role"] == "broker":
            with urllib.request.urlopen(f"http://{node['metrics']}/metrics", timeout=10) as page:
                lines = page.read().decode().splitlines()
            found += [line for line in lines if line.startswith("tidelog_client_metric") and f'"{client_id}"' in line]
    return found


def test_a_client_pushes_what_a_subscription_asks_of_it(cluster: EmbeddedCluster) -> None:
    name, client_id = f"s-{uuid.uuid4().hex[:8]}", f"c-{uuid.uuid4().hex[:8]}"
    alter(cluster, name, SET, metrics="org.apache.kafka.producer.", interval_ms="200", match=f"client_id={client_id}")
    assert name in listed(cluster)
    asked = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": client_id})
    other = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": f"{client_id}-not"})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not series(cluster, client_id):
        asked.poll(0.2)
        other.poll(0)
    found = series(cluster, client_id)
    assert found
    assert all('metric="org.apache.kafka.producer.' in line and 'tenant=""' in line for line in found)
    assert any('client_software_name="librdkafka"' in line or "confluent" in line for line in found)
    assert not series(cluster, f"{client_id}-not")
    alter(cluster, name, DELETE, metrics=None, interval_ms=None, match=None)
    assert name not in listed(cluster)
