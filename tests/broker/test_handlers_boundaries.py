"""The least and the greatest integers and the longest texts in every field of every API and version: each request is
answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.partitions.partition import Partition
from common.machine import machine_ports
from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import INT_MAX, LONG_MAX, Catalogue
from common.topic_settings import TOPIC_SETTINGS
from tests.broker.replication_lab import SECRET, batch
from tests.broker.tenant_lab import ALPHA, CONTROLLER, INTERNAL, OPERATOR, TenantLab
from tests.broker.tenant_requests import request
from tests.common.call_count import counted_calls
from wire.apis import APIS, Api
from wire.buffers import BufferPool
from wire.client import ClientConnection, ConnectionLost
from wire.codec import decode_response
from wire.listeners import ListenerKind
from wire.messages import (
    CreateTopicsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
)
from wire.tick import Tick
from wire.watch import Watch

NAME = "x"  # what `tenant_requests` calls everything
ALL = "all of them"
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_FOR_LOGINS = ("SaslHandshake", "SaslAuthenticate")
_CLOSES: set[tuple[str, object]] = {  # where Apache Kafka closes too, or who asks poses as a node
    ("Fetch", ("replica_id", 2**31 - 1)),
    ("Fetch", ("replica_state.replica_id", 2**31 - 1)),
    ("Fetch", (ALL, 2)),
    ("Fetch", (ALL, 3)),
}
_SPARED = {
    ("UnregisterBroker", "broker_id", 0),  # the lab's own
    ("Produce", "acks", 0),  # never answered
    ("DescribeTier", "partition_index", 0),  # waits for `__tier_state`, which a cluster without a tier has not
    ("DescribeTier", "partition_index", 2**31 - 1),
}
_GIVEN: dict[str, dict[str, Any]] = {"DescribeTier": {"partition_index": -1}, "ImportKeys": {"records": []}}
LONG_TEXTS = ("x" * 32_767, "é" * 16_383)  # the longest of versions that are not flexible
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
LIST_OFFSETS = 2
ANSWER_S = 30.0


Asked = tuple[Api, int, Hashable, Any]
"""An API, its version, where in the request there is something special, and the request."""
Asking = tuple[str, Hashable]
"""The name of an API and such a place."""


def boundaries(bits: int) -> tuple[int, ...]:
    return (-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1)


def leaf_fields(api: Api, version: int) -> Iterator[tuple[str, str]]:
    """Path and type of each field that has no fields."""

    def walk(struct: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for name, field in struct.fields.items():
            if not field.for_version_q(version):
                continue
            below = (*path, name)
            if field.is_struct() or field.is_struct_array():
                yield from walk(field, below)
            else:
                yield ".".join(below), field.type_str

    yield from walk(api.request._struct, ())


def requests_of(kind: ListenerKind) -> Iterator[Asked]:
    """At (path of a field or ALL, its value or the number of all their values)."""
    for api in APIS.values():
        if kind not in api.kinds or api.name in _FOR_LOGINS:
            continue
        for version in range(api.min_version, api.max_version + 1):
            fields = {path: _BITS[kind] for path, kind in leaf_fields(api, version) if kind in _BITS}
            more = _GIVEN.get(api.name, {})
            for path, bits in fields.items():
                for value in boundaries(bits):
                    if (api.name, path, value) not in _SPARED:
                        yield api, version, (path, value), request(api, version, {**more, path: value})
            for number in range(len(boundaries(8))):
                every = {path: boundaries(bits)[number] for path, bits in fields.items()}
                if not any((api.name, path, value) in _SPARED for path, value in every.items()):
                    yield api, version, (ALL, number), request(api, version, {**more, **every})


def requests_with_long_texts(kind: ListenerKind) -> Iterator[Asked]:
    """At the path of a field, or ALL."""
    for api in APIS.values():
        if kind not in api.kinds or api.name in _FOR_LOGINS:
            continue
        for version in range(api.min_version, api.max_version + 1):
            fields = {path: type_name for path, type_name in leaf_fields(api, version) if "string" in type_name}
            more = _GIVEN.get(api.name, {})
            for text in LONG_TEXTS if fields else ():
                long = {path: [text] if type_name.startswith("[]") else text for path, type_name in fields.items()}
                for path, value in long.items():
                    yield api, version, path, request(api, version, {**more, path: value})
                yield api, version, ALL, request(api, version, {**more, **long})


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the broker, the controller or their loop says of a failure of its own."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


@asynccontextmanager
async def peopled_lab(root: Path) -> AsyncIterator[TenantLab]:
    """A broker with a topic and a group that requests find, whose retention hardly pauses."""
    async with TenantLab(root, retention_ms=1) as lab:
        wire = await lab.connect(OPERATOR)
        topic = CreateTopicsRequest.CreatableTopic(
            name=NAME, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        await wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 5)
        assert not (await wire.call(produce_request(), 9)).responses[0].partition_responses[0].error_code
        found = FindCoordinatorRequest(key_type=0, coordinator_keys=[NAME])
        assert not (await wire.call(found, 4)).coordinators[0].error_code
        yield lab


def produce_request() -> Any:
    data = ProduceRequest.TopicProduceData
    part = data.PartitionProduceData(index=0, records=batch(b"one", b"two"))
    return ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=[data(name=NAME, partition_data=[part])])


async def connected(lab: TenantLab, listener: str) -> ClientConnection:
    ports = machine_ports(lab.directory / "client")
    return await ClientConnection.connect(
        ports, lab.address(listener), Tick(), BufferPool(), Watch(),
        client_id="lab", secret=None if listener == OPERATOR else SECRET,
    )  # fmt: skip


async def closed_by(root: Path, listener: str, requests: Callable[[ListenerKind], Iterator[Asked]]) -> set[Asking]:
    """Whose requests closed the connection in place of an answer, of the APIs that the listener serves."""
    kind = ListenerKind.OPERATOR if listener == OPERATOR else ListenerKind.INTERNAL
    closed: set[Asking] = set()
    served: set[str] = set()
    async with peopled_lab(root) as lab:
        client = await connected(lab, listener)
        for api, version, place, message in requests(kind):
            try:
                await client.call(message, version, timeout_s=ANSWER_S)
                served.add(api.name)
            except ConnectionLost:
                closed.add((api.name, place))
                client = await connected(lab, listener)
        client.close()
    return {one for one in closed if one[0] in served}


@pytest.mark.parametrize("listener", [OPERATOR, INTERNAL, CONTROLLER])
async def test_every_integer_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str) -> None:
    assert await closed_by(tmp_path, listener, requests_of) <= _CLOSES
    assert not complaints(caplog)


@pytest.mark.parametrize("listener", [OPERATOR, INTERNAL, CONTROLLER])
async def test_every_text_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str) -> None:
    assert not await closed_by(tmp_path, listener, requests_with_long_texts)
    assert not complaints(caplog)


async def test_every_text_of_a_tenant_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its names are longer inside: they begin with the tenant's prefix."""
    async with peopled_lab(tmp_path) as lab:
        caplog.clear()
        wire = await lab.connect(ALPHA)
        for api, version, path, message in requests_with_long_texts(ListenerKind.TENANT):
            payload = await wire.exchange(message, version)
            assert payload is not None, (api.name, version, path)
            decode_response(api.key, version, payload)
    assert not complaints(caplog)


def numeric(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Each number that a catalogue's settings may have, as name and text: the least and the greatest."""
    for setting in catalogue:
        if setting.type_name in ("int", "long", "double") and not setting.needs_restart:
            for value in (
                setting.low,
                setting.high,
                {"int": INT_MAX, "long": LONG_MAX, "double": 1e308}[setting.type_name],
            ):
                if value is not None:
                    yield setting.name, setting.text(value if setting.type_name == "double" else int(value))


async def retained(lab: TenantLab) -> None:
    """A whole round of retention has passed, if not two."""
    with counted_calls(of=Partition.delete_old_segments) as looks:
        async with asyncio.timeout(ANSWER_S):
            while looks.calls < 2 * len(lab.broker.partitions):  # noqa: ASYNC110  nothing tells of a round
                await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
async def test_every_number_that_a_setting_takes_can_be_worked_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: int
) -> None:
    async with peopled_lab(tmp_path) as lab:
        caplog.clear()
        client = await connected(lab, OPERATOR)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        taken = 0
        for name, text in numeric(TOPIC_SETTINGS if kind == TOPIC else NODE_SETTINGS):
            for operation in (SET, DELETE):
                change = resource.AlterableConfig(name=name, config_operation=operation, value=text)
                of = resource(resource_type=kind, resource_name=NAME if kind == TOPIC else "", configs=[change])
                answer = await client.call(
                    IncrementalAlterConfigsRequest(resources=[of], validate_only=False), 1, timeout_s=ANSWER_S
                )
                taken += not answer.responses[0].error_code
                await client.call(produce_request(), 9, timeout_s=ANSWER_S)
                await client.call(
                    request(APIS[LIST_OFFSETS], 8, {"topics.partitions.timestamp": 1}), 8, timeout_s=ANSWER_S
                )
                await retained(lab)
        client.close()
    assert taken
    assert not complaints(caplog)
