"""Metrics of tenants' clients at a running broker: operators see them by tenant, and no tenant has a say in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from common.errors import ErrorCode
from kraft.records import ResourceType
from records.compression import Compression, compress
from tests.broker.otlp import PREFIX, gauge
from tests.broker.tenant_lab import ALPHA, BETA, OPERATOR, TenantLab, Wire
from wire.messages import (
    ApiVersionsRequest,
    DescribeConfigsRequest,
    GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    PushTelemetryRequest,
)

METRICS = int(ResourceType.CLIENT_METRICS)
INSTANCE = UUID(int=7)
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TenantLab]:
    async with TenantLab(tmp_path_factory.mktemp("telemetry")) as made:
        yield made


async def alter(wire: Wire, name: str, **settings: str) -> ErrorCode:
    configs = [
        _Resource.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in settings.items()
    ]
    rows = [_Resource(resource_type=METRICS, resource_name=name, configs=configs)]
    answer = await wire.call(IncrementalAlterConfigsRequest(resources=rows, validate_only=False), 1)
    return ErrorCode(answer.responses[0].error_code)


async def pushed(wire: Wire, value: float) -> ErrorCode:
    told = await wire.call(GetTelemetrySubscriptionsRequest(client_instance_id=INSTANCE), 0)
    assert told.error_code == 0 and told.requested_metrics == [PREFIX]
    data = MetricsData()
    gauge(data, "m", value, topic="orders")
    request = PushTelemetryRequest(
        client_instance_id=INSTANCE,
        subscription_id=told.subscription_id,
        terminating=False,
        compression_type=Compression.ZSTD,
        metrics=compress(Compression.ZSTD, data.SerializeToString()),
    )
    return ErrorCode((await wire.call(request, 0)).error_code)


@pytest.mark.asyncio(loop_scope="module")
async def test_series_have_their_tenant(lab: TenantLab) -> None:
    operator = await lab.connect(OPERATOR)
    assert await alter(operator, "all", metrics=PREFIX, interval_ms="60000") is ErrorCode.NONE
    for value, listener in enumerate((ALPHA, BETA, OPERATOR)):
        wire = await lab.connect(listener)
        await wire.call(ApiVersionsRequest(client_software_name="lab", client_software_version="1.0"), 3)
        assert await pushed(wire, value) is ErrorCode.NONE
    lines = [
        line for line in lab.broker.metrics.text().decode().splitlines() if line.startswith("tidelog_client_metric{")
    ]
    for value, tenant in enumerate((lab.tenants[ALPHA], lab.tenants[BETA], "")):
        (line,) = [line for line in lines if f'tenant="{tenant}"' in line]
        assert line.endswith(f" {float(value)}") and f'metric="{PREFIX}m"' in line and 'topic="orders"' in line
        assert 'client_software_name="lab"' in line and 'client_software_version="1.0"' in line
    assert len(lines) == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_tenants_have_no_subscriptions_of_their_own(lab: TenantLab) -> None:
    alpha = await lab.connect(ALPHA)
    assert await alter(alpha, "mine", metrics="*") is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=METRICS, resource_name="all", configuration_keys=None
    )
    described = (await alpha.call(DescribeConfigsRequest(resources=[row]), 4)).results[0]
    assert (described.error_code, described.configs) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    for version, request in (
        (0, ListConfigResourcesRequest()),
        (1, ListConfigResourcesRequest(resource_types=[METRICS])),
    ):
        assert (await alpha.call(request, version)).config_resources == []


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_their_subscriptions_with_every_default(lab: TenantLab) -> None:
    operator = await lab.connect(OPERATOR)
    assert await alter(operator, "some", match="client_id=a.*") is ErrorCode.NONE
    rows = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=METRICS, resource_name=name, configuration_keys=None
        )
        for name in ("some", "absent", "")
    ]
    request = DescribeConfigsRequest(resources=rows, include_synonyms=True, include_documentation=True)
    some, absent, nameless = (await operator.call(request, 4)).results

    def values(result: Any) -> list[tuple[str, str, int, int]]:
        return [(one.name, one.value, one.config_source, len(one.synonyms)) for one in result.configs]

    assert values(some) == [("interval.ms", "300000", 5, 0), ("match", "client_id=a.*", 7, 1), ("metrics", "", 5, 0)]
    assert values(absent) == [("interval.ms", "300000", 5, 0), ("match", "", 5, 0), ("metrics", "", 5, 0)]
    assert [one.config_type for one in some.configs] == [3, 7, 7]
    assert (nameless.error_code, nameless.configs) == (ErrorCode.INVALID_REQUEST, [])
    for version, listed in (
        (0, ListConfigResourcesRequest()),
        (1, ListConfigResourcesRequest(resource_types=[METRICS])),
    ):
        names = {one.resource_name for one in (await operator.call(listed, version)).config_resources}
        assert {"some"} <= names <= {"some", "all"}
