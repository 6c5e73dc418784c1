"""Subscriptions to clients' metrics in the metadata: what is refused, and that they stay."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.client_metrics import PATTERNS_MAX
from common.errors import ErrorCode
from common.pacing import SLICE_COST
from kraft.audit.metadata_audit import MetadataAudit
from kraft.audit.metadata_export import metadata_events
from kraft.batches import Batch, BatchHeader
from kraft.controller.client_metrics import NAME_LENGTH_MAX, PREFIXES_MAX, SUBSCRIPTIONS_MAX
from kraft.controller.configs import incremental_alter_configs
from kraft.controller.policy import ControllerPolicy
from kraft.features import TELEMETRY_LEVEL, TIDELOG_VERSION
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import snapshot_records
from kraft.rebuilding.rebuild import NamedBroker, Rebuilder
from kraft.records import ClusterRecord, ConfigRecord, FeatureLevelRecord, ResourceType
from tests.kraft.decisions import decide_alter_configs, decide_incremental_alter_configs
from wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest

METRICS = ResourceType.CLIENT_METRICS
IMAGE = replayed(EMPTY_IMAGE, [ClusterRecord("c", 1), FeatureLevelRecord(TIDELOG_VERSION, TELEMETRY_LEVEL)])
POLICY = ControllerPolicy()
SET, DELETE, APPEND, SUBTRACT = range(4)
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


def decided(image: MetadataImage, name: str, *changes: tuple[str, str | None], operation: int = SET) -> Any:
    configs = [_Resource.AlterableConfig(name=key, value=value, config_operation=operation) for key, value in changes]
    resource = _Resource(resource_type=METRICS, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return decide_incremental_alter_configs(image, request, POLICY)


def after(image: MetadataImage, name: str, *changes: tuple[str, str | None], operation: int = SET) -> MetadataImage:
    decision = decided(image, name, *changes, operation=operation)
    assert decision.reply.responses[0].error_code == ErrorCode.NONE, decision.reply
    return replayed(image, decision.records)


NONE, REQUEST, CONFIG = ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
ANSWERS = [
    ("", "metrics", "a", REQUEST),
    ("s", "foo", "a", REQUEST),
    ("s", "interval.ms", "99", REQUEST),
    ("s", "interval.ms", "100", NONE),
    ("s", "interval.ms", "3600000", NONE),
    ("s", "interval.ms", "3600001", REQUEST),
    ("s", "interval.ms", "x", CONFIG),
    ("s", "match", "", NONE),
    ("s", "match", "client_id=a=b", CONFIG),
    ("s", "match", "client_id=", CONFIG),
    ("s", "match", "foo=a", CONFIG),
    ("s", "match", "client_id=(", CONFIG),
    ("s", "match", "client_id=(?=a)b", CONFIG),
    ("s", "match", "client_id=a,client_id=b", NONE),
    ("s", "match", " client_software_name = apache.* , client_source_port=9.*", NONE),
    ("s", "metrics", "a,a", NONE),
    ("s", "metrics", "", NONE),
    ("s", "metrics", "a,,b", CONFIG),
    ("s", "metrics", None, REQUEST),
    ("s /ü", "metrics", "a", NONE),
]
"""What Apache Kafka 4.2.0 answered to each of these, but for a pattern that only Java has."""


@pytest.mark.parametrize(("name", "key", "value", "code"), ANSWERS)
def test_what_is_refused(name: str, key: str, value: str | None, code: ErrorCode) -> None:
    decision = decided(IMAGE, name, (key, value))
    assert decision.reply.responses[0].error_code == code
    assert bool(decision.records) is (code is NONE)


def test_a_resource_is_there_while_it_has_a_setting() -> None:
    image = after(IMAGE, "s", ("metrics", "a"), ("interval.ms", "1000"))
    assert image.configs.client_metrics == {"s": {"metrics": "a", "interval.ms": "1000"}}
    image = after(image, "s", ("metrics", "b"), operation=APPEND)
    assert image.configs.client_metrics["s"]["metrics"] == "a,b"
    image = after(image, "s", ("metrics", "a"), operation=SUBTRACT)
    assert image.configs.client_metrics["s"]["metrics"] == "b"
    image = after(image, "s", ("metrics", None), ("interval.ms", None), operation=DELETE)
    assert image.configs.client_metrics == {}


def test_alter_configs_replaces_them_all() -> None:
    resource = AlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name="match", value="client_id=c")]
    rows = [resource(resource_type=METRICS, resource_name="s", configs=configs)]
    image = after(IMAGE, "s", ("metrics", "a"))
    decision = decide_alter_configs(image, AlterConfigsRequest(resources=rows, validate_only=False), POLICY)
    assert replayed(image, decision.records).configs.client_metrics == {"s": {"match": "client_id=c"}}


def test_a_cluster_with_older_nodes_has_none() -> None:
    old = replayed(IMAGE, [FeatureLevelRecord(TIDELOG_VERSION, TELEMETRY_LEVEL - 1)])
    assert decided(old, "s", ("metrics", "a")).reply.responses[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_how_many_and_how_long() -> None:
    image = IMAGE
    for number in range(SUBSCRIPTIONS_MAX):
        image = after(image, f"s{number}", ("metrics", "a"))
    assert decided(image, "one more", ("metrics", "a")).reply.responses[0].error_code == ErrorCode.POLICY_VIOLATION
    after(image, "s1", ("metrics", "b"))
    assert decided(IMAGE, "n" * (NAME_LENGTH_MAX + 1), ("metrics", "a")).reply.responses[0].error_code == REQUEST
    assert decided(IMAGE, "s", ("metrics", "m" * 8_193)).reply.responses[0].error_code == CONFIG
    many = ",".join(f"m{number}" for number in range(PREFIXES_MAX + 1))
    assert decided(IMAGE, "s", ("metrics", many)).reply.responses[0].error_code == CONFIG
    patterns = ",".join("client_id=a" for _ in range(PATTERNS_MAX + 1))
    assert decided(IMAGE, "s", ("match", patterns)).reply.responses[0].error_code == CONFIG
    assert decided(IMAGE, "s", ("match", "client_id=" + "m" * 1_001)).reply.responses[0].error_code == CONFIG


def test_no_two_subscriptions_are_checked_in_one_slice() -> None:
    """Each may have patterns that take milliseconds to read, also where something else of it is altered."""
    change = _Resource.AlterableConfig(name="interval.ms", value="1000", config_operation=SET)
    rows = [_Resource(resource_type=METRICS, resource_name=f"s{number}", configs=[change]) for number in range(10)]
    request = IncrementalAlterConfigsRequest(resources=rows, validate_only=True)
    costs = list(incremental_alter_configs(IMAGE, request, POLICY))
    assert sum(cost >= SLICE_COST for cost in costs) == len(rows)


NAMES = st.sampled_from(["s1", "s2", "s3"])
RECORDS = st.lists(
    st.builds(
        ConfigRecord,
        st.just(METRICS),
        NAMES,
        st.sampled_from(["metrics", "match"]),
        st.sampled_from(["client_id=a", "client_id=b", None]),
    ),
    max_size=12,
)


@given(RECORDS, RECORDS)
def test_subscriptions_survive_snapshots_and_rebuilding(first: list[ConfigRecord], second: list[ConfigRecord]) -> None:
    image = replayed(replayed(IMAGE, first), second)
    expected: dict[str, dict[str, str]] = {}
    for record in first + second:
        if record.value is None:
            expected.get(record.resource_name, {}).pop(record.name, None)
        else:
            expected.setdefault(record.resource_name, {})[record.name] = record.value
    expected = {name: given for name, given in expected.items() if given}
    assert image.configs.client_metrics == expected
    assert replayed(EMPTY_IMAGE, snapshot_records(image)).configs.client_metrics == expected
    rebuilder = Rebuilder("c", 2)
    rebuilder.take_events(list(metadata_events(image)))
    rebuilt = rebuilder.build([NamedBroker(0)], 1, random.Random(1)).image
    assert rebuilt.configs.client_metrics == expected


def test_other_settings_leave_the_subscriptions_the_same_object() -> None:
    image = after(IMAGE, "s", ("metrics", "a"))
    other = replayed(image, [ConfigRecord(ResourceType.BROKER, "", "log.retention.ms", "1000")])
    assert other.configs.client_metrics is image.configs.client_metrics


def test_the_audit_shows_them() -> None:
    record = ConfigRecord(METRICS, "s", "metrics", "a", actor="User:alice@10.0.0.1")
    batch = Batch(BatchHeader(1, 1, 1, IMAGE.next_offset), [record])
    (event,) = MetadataAudit(IMAGE.next_offset, IMAGE).events(batch)
    assert "client_metrics" in str(event) and "'value': 'a'" in str(event)
