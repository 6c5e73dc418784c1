"""Tenants' use of a broker, counted at its sockets, reported to the controller, and told to operators."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker.quotas.tenant_bounds import PRESSURE
from kraft.quotas.tenant_quotas import Resource
from tests.broker.replication_lab import TOPIC, batch, eventually
from tests.broker.tenant_lab import ALPHA, BETA, INTERNAL, OPERATOR, TenantLab
from wire.codec import encode_request
from wire.messages import AlterCellRequest, CreateTopicsRequest, DescribeUsageRequest, MetadataRequest, ProduceRequest


async def test_a_tenants_bytes_are_those_of_its_sockets(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        book = lab.broker.security.usage
        tenant = lab.tenants[ALPHA]
        wire = await lab.connect(ALPHA)
        request = encode_request(MetadataRequest(topics=None), 12, 7, "lab")
        answers = [await wire.send(request) for _ in range(3)]
        used = book.of(tenant)
        assert (used.received, used.sent) == (3 * len(request), sum(4 + len(answer or b"") for answer in answers))
        assert (used.requests, used.connections) == (3, 1)
        assert book.get(lab.tenants[BETA]) is None
        operators = book.operators.marker
        nodes = await lab.connect(INTERNAL)
        nodes.close()
        assert book.operators.marker == operators, "other nodes are not counted"
        wire.close()
        await eventually(lambda: used.connections == 0)


async def test_the_controller_is_told_and_tells_operators(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        operator, alpha = await lab.connect(OPERATOR), await lab.connect(ALPHA)
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        await alpha.call(CreateTopicsRequest(topics=[topic], timeout_ms=9_000, validate_only=False), 7)

        async def told() -> Any:
            request = DescribeUsageRequest(brokers=None, include_tenants=True, include_partitions=True)
            return await operator.call(request, 0)

        answer = await told()
        assert not answer.is_known and [row.is_known for row in answer.brokers] == [False]
        size = len(batch(b"x" * 1_000))
        await eventually(lambda: lab.broker.partitions.get(f"{lab.tenants[ALPHA]}_{TOPIC}", 0) is not None)
        produced = ProduceRequest.TopicProduceData
        row = produced.PartitionProduceData(index=0, records=batch(b"x" * 1_000))
        data = [produced(name=TOPIC, partition_data=[row])]
        await alpha.call(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=9_000, topic_data=data), 12)
        await lab.broker.usage.reports.report()
        answer = await told()
        (broker,) = answer.brokers
        assert answer.is_known and broker.is_known and broker.round >= 1
        rows = {row.tenant: row for row in broker.tenants}
        assert rows[lab.tenants[ALPHA]].tenant_name == "alpha" and lab.tenants[BETA] not in rows
        assert size < rows[lab.tenants[ALPHA]].bytes_in < size + 1_000
        assert rows[lab.tenants[ALPHA]].bytes_in + rows[""].bytes_in == broker.bytes_in
        (busiest,) = [row for row in broker.partitions if row.topic.endswith(TOPIC)]
        assert busiest.in_rate > 0 and busiest.out_rate == 0


async def test_a_broker_at_the_bandwidth_of_its_cell_has_a_tenant_wait_for_the_pressure(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        operator, alpha = await lab.connect(OPERATOR), await lab.connect(ALPHA)
        limit = AlterCellRequest.AlteredCellLimit(name="bandwidth.per.broker", value=20_000)
        answer = await operator.call(AlterCellRequest(cell_name="default", limits=[limit]), 0)
        assert answer.error_code == 0, answer.error_message
        produced = ProduceRequest.TopicProduceData
        row = produced.PartitionProduceData(index=0, records=batch(b"x" * 2_000))
        data = [produced(name="unknown", partition_data=[row])]
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=9_000, topic_data=data)
        throttled_ms = 0
        async with asyncio.timeout(20):
            while not throttled_ms:
                throttled_ms = (await alpha.call(request, 12)).throttle_time_ms
        usage = lab.broker.security.usage.of(lab.tenants[ALPHA])
        assert usage.throttled_ms.keys() == {PRESSURE}
        assert Resource.INGRESS in lab.broker.usage.pressure.held
        assert (await operator.call(request, 12)).throttle_time_ms == 0
