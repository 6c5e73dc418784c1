"""The table of APIs: complete, within the schemas, and what ApiVersions tells of it."""

from __future__ import annotations

import importlib.resources
import re

import pytest
from kafka.protocol.schemas.load_json import load_json

from common.errors import ErrorCode
from tests.wire.kafka_api_versions import offered
from wire import messages
from wire.apis import APIS, ApiKey, Features, api_versions, api_versions_unsupported, served
from wire.codec import decode_response, encode_response
from wire.listeners import ListenerKind
from wire.messages import ApiVersionsResponse

OUR_KEYS_FROM = 10_000
FEATURES = Features(7, {"metadata.version": 27}, {"metadata.version": (7, 27), "group.version": (0, 1)})
INTERNAL = {
    "AlterPartition", "Envelope", "FetchSnapshot", "BrokerRegistration", "BrokerHeartbeat", "UnregisterBroker",
    "AllocateProducerIds", "TierState", "AppendAudit",
}  # fmt: skip
NO_APIS = {"ConsumerProtocolAssignment", "ConsumerProtocolSubscription", "RequestHeader", "ResponseHeader"}
"""Schemas of what groups' members tell each other, which passes through unread, and of headers, read by hand."""


WITH_A_PLUGIN = {71: (0, 0), 72: (0, 0)}
"""What Apache Kafka offers only if a plug-in takes clients' metrics."""


def all_schemas() -> list[str]:
    names: list[str] = []
    for package in ("kafka.protocol.schemas.resources", "wire.schemas"):
        names += [f.name[:-5] for f in importlib.resources.files(package).iterdir() if f.name.endswith(".json")]
    return sorted(names)


def test_every_schema_is_of_an_api_in_the_table() -> None:
    schemas = all_schemas()
    assert len(schemas) == len(set(schemas)), "a schema of ours hides one of the library's"
    assert set(schemas) >= NO_APIS
    named = {key.api_name: key for key in ApiKey}
    for schema in set(schemas) - NO_APIS:
        api = re.sub("(Request|Response)$", "", schema)
        assert api != schema and named[api] == getattr(messages, schema).API_KEY


def test_a_row_has_versions_and_listeners_or_the_reason_why_it_is_not_served() -> None:
    for key in ApiKey:
        assert (key.unserved is None) == bool(key.listeners) == (key.min_version <= key.max_version) == (key in APIS)


def test_every_message_class_is_exported() -> None:
    for schema in all_schemas():
        if schema not in NO_APIS:
            assert getattr(messages, schema).name == schema
            assert schema in messages.__all__


def test_served_versions_lie_within_both_schemas() -> None:
    for api in APIS.values():
        for message in (api.request, api.response):
            low, high = message._valid_versions
            assert low <= api.min_version <= api.max_version <= high, api.name
        assert api.request.API_KEY == api.response.API_KEY == api.key
        assert api.announced_min <= api.min_version


def test_versions_are_those_that_apache_kafka_offers() -> None:
    """Of all that has a key of Apache Kafka's: clients find the versions that they find there, and no unstable one."""
    kafkas = offered()
    ours = {key: (api.announced_min, api.max_version) for key, api in APIS.items() if key < OUR_KEYS_FROM}
    assert ours == {key: kafkas[key] for key in ours if key not in WITH_A_PLUGIN} | WITH_A_PLUGIN
    assert not WITH_A_PLUGIN.keys() & kafkas.keys()


def test_our_schema_files_carry_their_own_names() -> None:
    for file in importlib.resources.files("wire.schemas").iterdir():
        if file.name.endswith(".json"):
            schema = load_json(file.name[:-5], package="wire.schemas")
            assert schema["name"] + ".json" == file.name
            assert schema["type"] == ("request" if file.name.endswith("Request.json") else "response")


@pytest.mark.parametrize("kind", ListenerKind)
@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_the_table(kind: ListenerKind, version: int) -> None:
    frame = encode_response(18, version, 3, api_versions(kind, version, FEATURES))
    assert frame[8:10] == b"\0\0"  # header v0: the error code follows the correlation id at once
    _, decoded = decode_response(18, version, frame[4:])
    told = {row.api_key: (row.min_version, row.max_version) for row in decoded.api_keys}
    assert told == {a.key: (a.announced_min, a.max_version) for a in APIS.values() if kind in a.kinds}
    assert told[0] == (0, 13)
    assert not {68, 69, 76, 88} & set(told)
    assert ({APIS[key].name for key in told} & INTERNAL == INTERNAL) is (kind is ListenerKind.INTERNAL)
    if version >= 3:
        assert decoded.finalized_features_epoch == 7
        assert [(f.name, f.max_version_level) for f in decoded.finalized_features] == [("metadata.version", 27)]
        names = [f.name for f in decoded.supported_features]
        assert names == (["group.version", "metadata.version"] if version >= 4 else ["metadata.version"])


def test_unknown_feature_epoch_tells_no_finalized_features() -> None:
    features = Features(-1, {"metadata.version": 27}, {})
    response = api_versions(ListenerKind.OPERATOR, 3, features)
    assert response.finalized_features_epoch == -1
    assert response.finalized_features == []


def test_an_unknown_version_is_answered_in_v0_form() -> None:
    frame = api_versions_unsupported(42)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:8] == b"\0\0\0\x2a"
    body = ApiVersionsResponse.decode(frame[8:], version=0)
    assert body.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.min_version, row.max_version) for row in body.api_keys] == [(18, 0, 4)]
    assert decode_response(18, 3, frame[4:])[1].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_served_knows_listeners_and_versions() -> None:
    assert served(ListenerKind.OPERATOR, 0, 3) is APIS[0]
    assert served(ListenerKind.OPERATOR, 0, 2) is None
    assert served(ListenerKind.TENANT, 56, 3) is None
    assert served(ListenerKind.INTERNAL, 56, 3) is APIS[56]
    assert served(ListenerKind.INTERNAL, 56, 4) is None
    assert served(ListenerKind.INTERNAL, 999, 0) is None
