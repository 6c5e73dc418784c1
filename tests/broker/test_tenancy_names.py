"""What becomes of each field on its way in and out: names come back as they went, and operators' are left alone."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import COMPILED_NAMES, FIELD_CLASSES
from broker.requests.context import RequestContext
from broker.security.session import ClientSession
from broker.tenancy.compiled_names import CompiledNames
from broker.tenancy.compiler import Compiler, UnclassifiedField
from broker.tenancy.field_classes import ENTITIES, NAMES, FieldClass
from broker.tenancy.rewriter import TenantNames
from broker.tenancy.scope import ForeignName, ProxyAddress, TenantScope
from common.errors import ErrorCode, MalformedFrame, ProtocolError
from kraft.image.metadata import EMPTY_IMAGE
from kraft.image.sharded_map import ShardedMap
from kraft.image.topics import TopicImage, TopicsImage
from kraft.topic_names import check_topic_name
from tests.broker.tenant_requests import places, request, tenant_apis
from wire import messages
from wire.apis import Api
from wire.codec import decode_request, encode_request
from wire.messages import DescribeTopicPartitionsResponse, MetadataResponse

TENANT, OTHER = "lkc-aaaaaa", "lkc-bbbbbb"
PREFIX = f"{TENANT}_"
OWN_ID, OTHERS_ID = (uuid.UUID(int=number << 64) for number in (1, 2))
TOPICS = TopicsImage(
    by_id=ShardedMap(
        {
            OWN_ID.bytes: TopicImage(f"{PREFIX}a", OWN_ID.bytes),
            OTHERS_ID.bytes: TopicImage(f"{OTHER}_a", OTHERS_ID.bytes),
        }
    )
)
REWRITER = TenantNames(lambda: EMPTY_IMAGE, ProxyAddress("example.org", 9094), COMPILED_NAMES)
_PREFIXED = (
    FieldClass.TOPIC_NAME,
    FieldClass.GROUP_ID,
    FieldClass.TRANSACTIONAL_ID,
    FieldClass.COORDINATOR_KEY,
    FieldClass.CONFIG_RESOURCE,
    FieldClass.ACL_RESOURCE,
)


def scope() -> TenantScope:
    return TenantScope(TENANT, PREFIX, TOPICS, ProxyAddress("example.org", 9094))


def context(api: Api, tenant: str | None) -> RequestContext:
    return RequestContext(ClientSession("L", False, "h", None, tenant=tenant), api.key, api.max_version, 1, "c")


def at(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = getattr(message[0] if isinstance(message, list) else message, name)
    return message[0] if isinstance(message, list) and message else message


def test_every_line_of_the_table_is_a_field() -> None:
    for message, fields in FIELD_CLASSES.items():
        struct = getattr(messages, message)._struct
        for path in fields:
            field = struct
            for name in path.split("."):
                assert name in field.fields, f"{message} {path}"
                field = field.fields[name]
            assert field._entity_type is None, f"{message} {path} classifies itself"
            assert path.rpartition(".")[2] not in NAMES, f"{message} {path} is classified by its name"


@pytest.mark.parametrize("message", [name for name in FIELD_CLASSES if not name.startswith("Sasl")])
def test_a_field_that_stands_nowhere_is_noticed(message: str) -> None:
    for path in FIELD_CLASSES[message]:
        less = {path_: found for path_, found in FIELD_CLASSES[message].items() if path_ != path}
        with pytest.raises(UnclassifiedField, match=path):
            CompiledNames(Compiler(dict(FIELD_CLASSES) | {message: less}))


@pytest.mark.parametrize("entity", [name for name in ENTITIES if name not in ("brokerId", "producerId")])
def test_an_entity_that_stands_nowhere_is_noticed(entity: str) -> None:
    less = {name: found for name, found in ENTITIES.items() if name != entity}
    with pytest.raises(UnclassifiedField, match=entity):
        CompiledNames(Compiler(FIELD_CLASSES, entities=less))


@pytest.mark.parametrize("name", NAMES)
def test_a_field_whose_name_has_no_class_is_noticed(name: str) -> None:
    less = {other: found for other, found in NAMES.items() if other != name}
    with pytest.raises(UnclassifiedField, match=name):
        CompiledNames(Compiler(FIELD_CLASSES, names=less))


@pytest.mark.parametrize("api", tenant_apis(), ids=lambda api: api.name)
def test_every_name_goes_in_with_the_prefix_and_operators_names_as_they_are(api: Api) -> None:
    for place in places(api):
        if place.field_class not in _PREFIXED:
            continue
        for version in place.versions:
            sent = request(api, version, {place.path: "a" if not _is_array(api, place.path) else ["a"]})
            frame = encode_request(sent, version, 1, "c")[4:]
            inside = REWRITER.inward(context(api, TENANT), decode_request(frame)[1])
            assert at(inside, place.path) == f"{PREFIX}a", place
            as_sent = REWRITER.inward(context(api, None), decode_request(frame)[1])
            assert encode_request(as_sent, version, 1, "c")[4:] == frame


def _is_array(api: Api, path: str) -> bool:
    field = api.request._struct
    for name in path.split("."):
        field = field.fields[name]
    return bool(field.is_array())


TEXTS = st.text(max_size=40)


@given(TEXTS)
def test_names_come_back(name: str) -> None:
    assert scope().name_out(scope().name_in(name)) == name


@given(TEXTS, st.sampled_from([3, 4]))
def test_resources_come_back(name: str, pattern: int) -> None:
    if (name, pattern) != ("", 4):  # which no ACL may have
        assert scope().resource_out(*scope().resource_in(name, pattern)) == (name, pattern)


@given(TEXTS, TEXTS)
def test_principals_come_back_and_no_two_become_one(kind: str, name: str) -> None:
    principal = f"{kind.replace(':', '')}:{name}"
    assert scope().principal_out(scope().principal_in(principal)) == principal


@given(st.text(max_size=60))
def test_what_is_not_the_tenants_never_gets_out(name: str) -> None:
    if name and not name.startswith(PREFIX):
        with pytest.raises(ForeignName):
            scope().name_out(name)


@given(
    st.lists(st.sampled_from([OWN_ID, OTHERS_ID, uuid.UUID(int=7), uuid.UUID(int=((1 << 96) - 1) << 32)]), max_size=9)
)
def test_ids_come_back_and_anothers_never_get_in(ids: list[uuid.UUID]) -> None:
    one = scope()
    inside = [one.id_in(topic_id) for topic_id in ids]
    assert OTHERS_ID not in inside
    assert [topic_id for topic_id in inside if TOPICS.get_by_id(topic_id.bytes if topic_id else b"")] == [
        topic_id for topic_id in ids if topic_id == OWN_ID
    ]
    assert [one.id_out(topic_id) for topic_id in inside] == ids


@given(TEXTS, st.sampled_from([PREFIX, f"{OTHER}_", "lkc-cccccc", ""]), TEXTS)
def test_sentences_name_nobody(before: str, name: str, after: str) -> None:
    told = scope().text_out(f"{before}{name}{after}", ErrorCode.TOPIC_ALREADY_EXISTS)
    assert told is not None and "lkc-" not in told.replace(before, "").replace(after, "")


def test_an_error_that_may_not_say_more_says_its_name() -> None:
    assert scope().text_out(f"{OTHER} is there", ErrorCode.TOPIC_ALREADY_EXISTS) == "Topic already exists."


def test_another_tenants_topic_is_left_out_of_a_list_and_keeps_a_whole_answer_back() -> None:
    metadata = next(api for api in tenant_apis() if api.name == "Metadata")
    topic = MetadataResponse.MetadataResponseTopic
    answer = MetadataResponse(topics=[topic(name=f"{OTHER}_a"), topic(name=f"{PREFIX}b")], brokers=[])
    shown = REWRITER.outward(context(metadata, TENANT), answer)
    assert [one.name for one in shown.topics] == ["b"]
    described = next(api for api in tenant_apis() if api.name == "DescribeTopicPartitions")
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=f"{OTHER}_a", partition_index=0)
    with pytest.raises(MalformedFrame):
        REWRITER.outward(context(described, TENANT), DescribeTopicPartitionsResponse(topics=[], next_cursor=cursor))


@pytest.mark.parametrize(
    ("name", "says"), [("", "empty"), (".", "not allowed"), ("x" * 239, "at most 238"), ("a b", "'a b'")]
)
def test_a_topics_name_is_judged_as_its_tenant_knows_it(name: str, says: str) -> None:
    with pytest.raises(ProtocolError, match=says) as refused:
        check_topic_name(PREFIX + name)
    assert TENANT not in refused.value.message
    check_topic_name(f"{PREFIX}{'x' * 238}")
