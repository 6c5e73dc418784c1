"""Long requests in portions: every row is there, in order, and none of the portions is long."""

from __future__ import annotations

import asyncio
import inspect
import random
import weakref
from collections import Counter
from typing import Any

import pytest

from broker.apis import FORWARDED_MAX, ROWS
from broker.gates.gating import free
from broker.requests.admission import Admission
from broker.requests.context import UNCUT_ELEMENTS_MAX, Handler, RequestChain, RequestContext, Route
from broker.requests.portions import Listing
from broker.requests.serving import RequestServing
from broker.security.session import ClientSession
from common.errors import ProtocolError
from common.pacing import Pacer, Work
from tests.broker.open_chain import KeepNames, NoQuota, open_chain
from wire.apis import APIS, ApiKey
from wire.codec import decode_response
from wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CreateTenantRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    RestoreTopicRequest,
    RestoreTopicResponse,
)

CUTS = {int(row.key): row.cuts for row in ROWS if row.cuts}

_FETCHED = OffsetFetchResponse.OffsetFetchResponseGroup
_TOPICS = _FETCHED.OffsetFetchResponseTopics
_PARTITION = _TOPICS.OffsetFetchResponsePartitions
_SESSION = ClientSession("L", False, "host", None)


def _context(key: int, version: int, pacer: Pacer) -> RequestContext:
    context = RequestContext(_SESSION, key, version, 1, "c")
    context.pacer = pacer
    return context


def _serving(pacer: Pacer, bytes_max: int = 64 << 20) -> RequestServing:
    return RequestServing(open_chain(), pacer, bytes_max)


async def _served(key: int, version: int, request: Any, handler: Handler, bytes_max: int = 64 << 20) -> Any:
    pacer = Pacer()
    answer = _serving(pacer, bytes_max).serve(_context(key, version, pacer), request, Route(handler, free, CUTS[key]))
    parts = await answer if inspect.isawaitable(answer) else answer
    return decode_response(key, version, b"".join(parts)[4:])[1]


def _listing(key: int, version: int) -> Listing:
    found = Route(lambda *_: None, free, CUTS[key]).cut(version)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(30))
async def test_rows_of_three_levels_come_back_as_they_were_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup
    topic_class = group_class.OffsetFetchRequestTopics

    def topics() -> list[Any] | None:
        if rng.random() < 0.2:
            return None
        return [
            topic_class(name=f"t{n}", partition_indexes=list(range(rng.choice([0, 1, 7, 150, 900]))))
            for n in range(rng.choice([0, 1, 3, 20]))
        ]

    groups = [group_class(group_id=f"g{n}", topics=topics()) for n in range(rng.choice([1, 4, 40]))]
    request = OffsetFetchRequest(groups=groups, require_stable=False)
    sizes: list[int] = []

    def handler(_: RequestContext, asked: Any) -> Any:
        leaves = [max(len(topic.partition_indexes), 1) for group in asked.groups for topic in group.topics or ()]
        sizes.append(max(sum(leaves), len(asked.groups)))
        return OffsetFetchResponse(
            groups=[
                _FETCHED(
                    group_id=group.group_id,
                    topics=[
                        _TOPICS(
                            name=topic.name,
                            partitions=[
                                _PARTITION(partition_index=index, committed_offset=1, metadata="", error_code=0)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in group.topics or ()
                    ],
                    error_code=0,
                )
                for group in asked.groups
            ]
        )

    answer = await _served(9, 8, request, handler)
    told = [
        (group.group_id, [(topic.name, [row.partition_index for row in topic.partitions]) for topic in group.topics])
        for group in answer.groups
    ]
    assert told == [
        (group.group_id, [(topic.name, topic.partition_indexes) for topic in group.topics or ()]) for group in groups
    ]
    assert max(sizes) <= _listing(9, 8).leaves_max


class Text(str):
    """A string of which it is known when it is freed."""

    __slots__ = ("__weakref__",)


async def test_the_joined_rows_of_many_portions_are_freed_in_slices() -> None:
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group_class.OffsetFetchRequestTopics(name=f"t{n}", partition_indexes=[0]) for n in range(5_000)]
    pacer, freed = Pacer(), Counter[int]()
    context = _context(9, 8, pacer)

    def handler(_: RequestContext, asked: Any) -> Any:
        rows = []
        for topic in asked.groups[0].topics:
            text = Text()
            weakref.finalize(text, lambda: freed.update([pacer.slices]))
            row = _PARTITION(partition_index=0, committed_offset=1, metadata=text, error_code=0)
            rows.append(_TOPICS(name=topic.name, partitions=[row]))
        return OffsetFetchResponse(groups=[_FETCHED(group_id="g", topics=rows, error_code=0)])

    request = OffsetFetchRequest(groups=[group_class(group_id="g", topics=topics)], require_stable=False)
    answer = _serving(pacer).serve(context, request, Route(handler, free, CUTS[9]))
    assert inspect.isawaitable(answer)
    await answer
    await pacer.rest(context.lane, own=False)
    assert freed.total() >= len(topics) - 50  # the last portion's own answer may be there yet
    assert max(freed.values()) <= 500


async def test_what_is_named_again_and_again_is_answered_once() -> None:
    asked: list[str] = []

    def handler(_: RequestContext, request: Any) -> Any:
        asked.extend(request.groups)
        return DescribeGroupsResponse(groups=[_group(name) for name in request.groups])

    request = DescribeGroupsRequest(groups=["a", "b"] * 5_000)
    answer = await _served(15, 5, request, handler)
    assert asked == [group.group_id for group in answer.groups] == ["a", "b"]


async def test_an_answer_ends_at_its_limit() -> None:
    def handler(_: RequestContext, request: Any) -> Any:
        return DescribeGroupsResponse(groups=[_group(name) for name in request.groups])

    request = DescribeGroupsRequest(groups=[f"group-{n}" for n in range(10_000)])
    with pytest.raises(ProtocolError):
        await _served(15, 5, request, handler, bytes_max=100_000)


class CountedNames(KeepNames):
    """Counts the requests whose names are rewritten in one go, and in slices."""

    def __init__(self) -> None:
        self.at_once = self.in_slices = 0

    def inward(self, context: RequestContext, request: Any) -> Any:
        self.at_once += 1
        return request

    def inward_work(self, context: RequestContext, request: Any) -> Work[Any]:
        self.in_slices += 1
        return super().inward_work(context, request)


@pytest.mark.parametrize(("topics", "in_slices"), [(3, False), (100, True)])
async def test_names_in_a_list_within_a_tenants_element_are_rewritten_in_slices(topics: int, in_slices: bool) -> None:
    batch, names, pacer = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, CountedNames(), Pacer()
    rows = [batch.AddPartitionsToTxnTopic(name=f"t{n}", partitions=[0]) for n in range(topics)]
    request = AddPartitionsToTxnRequest(transactions=[batch(transactional_id="t", topics=rows)])
    context = _context(ApiKey.ADD_PARTITIONS_TO_TXN, 5, pacer)
    context.session = ClientSession("L", False, "host", None)
    context.session.belong_to("User:u", "lkc-aaaaaa", None)
    serving = RequestServing(RequestChain(names, NoQuota()), pacer, 64 << 20)
    route = Route(lambda *_: AddPartitionsToTxnResponse(error_code=0, results_by_transaction=[]), free, paced=True)
    answer = serving.serve(context, request, route)
    assert await answer if inspect.isawaitable(answer) else answer
    assert (names.at_once, names.in_slices) == ((0, 1) if in_slices else (1, 0))


async def test_what_cannot_be_cut_is_refused_when_it_is_too_long() -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    protocols = [protocol(name="range", metadata=b"")] * (UNCUT_ELEMENTS_MAX + 1)
    request = JoinGroupRequest(group_id="g", protocols=protocols)
    pacer = Pacer()
    with pytest.raises(ProtocolError):
        _serving(pacer).serve(_context(11, 5, pacer), request, Route(lambda *_: None, free))


def test_every_listing_names_lists_of_its_messages() -> None:
    for key, listings in CUTS.items():
        api = APIS[key]
        for listing in listings:
            for version in range(max(listing.since, api.min_version), min(listing.until, api.max_version) + 1):
                for path, message in ((listing.asked, api.request), (listing.answered, api.response)):
                    struct = message._struct
                    for name in path:
                        struct = struct.fields[name]
                        assert struct.is_array(), (key, version, path)
                        assert struct.for_version_q(version), (key, version, path)


def test_clients_requests_are_cut_or_known_to_be_short() -> None:
    """An API with a list that no listing cuts has to be thought about: it is refused above UNCUT_ELEMENTS_MAX."""
    uncut = {
        api.name
        for api in APIS.values()
        if api.key not in CUTS
        and api.key > 1
        and any(kind.name != "INTERNAL" for kind in api.kinds)
        and any(field.is_array() and field.min_version <= api.max_version for field in api.request._struct._fields)
    }
    assert uncut == {
        "AddPartitionsToTxn", "AlterBalance", "AlterCell", "AlterClientQuotas", "AlterReplicaLogDirs",
        "AlterTenant", "AlterUserScramCredentials", "CreateApiKey", "CreateDelegationToken", "CreateTenant",
        "DescribeApiKeys", "DescribeCells", "DescribeClientQuotas", "DescribeDelegationToken", "DescribeQuorum",
        "DescribeTenants", "DescribeTopicPartitions", "DescribeUsage", "JoinGroup", "ListConfigResources",
        "ListGroups", "ListTransactions", "Metadata", "PlanBalance", "RestoreTopic", "SyncGroup", "UpdateFeatures",
        "WriteTxnMarkers",
    }  # fmt: skip


async def test_a_long_list_is_not_forwarded_whole() -> None:
    pacer, api = Pacer(), ApiKey.CREATE_TENANT
    networks = ["10.0.0.0/8"] * (FORWARDED_MAX + 1)
    request = CreateTenantRequest(limits=[], allow_networks=networks, deny_networks=[])
    row = next(row for row in ROWS if row.key == api)
    route = Route(lambda *_: None, free, row.cuts, row.paced, row.elements_max)
    with pytest.raises(ProtocolError, match=str(FORWARDED_MAX)):
        _serving(pacer).serve(_context(api, 0, pacer), request, route)


async def test_a_topic_of_ten_thousand_partitions_is_restored() -> None:
    pacer, row = Pacer(), next(row for row in ROWS if row.key == ApiKey.RESTORE_TOPIC)
    request = RestoreTopicRequest(topic_name="t", leader_epochs=[0] * UNCUT_ELEMENTS_MAX)
    route = Route(lambda *_: RestoreTopicResponse(), free, row.cuts, row.paced, row.elements_max)
    assert _serving(pacer).serve(_context(ApiKey.RESTORE_TOPIC, 0, pacer), request, route)


async def test_one_long_request_of_a_client_is_decoded_at_a_time() -> None:
    admission, inside, most = Admission(places=2), list[str](), 0

    async def request(client: str) -> None:
        nonlocal most
        async with admission.place(client):
            inside.append(client)
            assert inside.count(client) == 1
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.remove(client)

    tasks = [asyncio.create_task(request(client)) for client in "aaaaabbbbbccccc"]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 2
    assert not inside
    async with admission.place("a"), admission.place("b"):
        pass


def _group(name: str) -> Any:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=0, group_id=name, group_state="", protocol_type="", protocol_data="", members=[]
    )
