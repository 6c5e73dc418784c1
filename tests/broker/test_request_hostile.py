"""The most expensive legal requests of every API, from an operator and from a tenant: no slice of them is long."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.hostile.requests import Hostile, Names, hostile_requests
from broker.apis import ROWS
from broker.coordination.placement import keeping_partition
from common.pacing import SLICE_COST
from kraft.controller.attribution import actor_of
from tests.broker.tenant_lab import ALPHA, OPERATOR, TenantLab
from tests.common.call_count import counted_calls
from tests.common.callback_calls import counted_callbacks
from wire.apis import ApiKey
from wire.codec import encode_request
from wire.listeners import ListenerKind
from wire.messages import CreateTopicsRequest, OffsetCommitRequest

CUTS = {int(row.key): row.cuts for row in ROWS if row.cuts}
ELEMENTS = 1_000
DESTRUCTIVE = {"UnregisterBroker", "UpdateFeatures", "DeleteTenant", "DeleteTopics", "DeleteGroups"}
MANY_ELEMENTS = 3_000
CALLS_MAX = 5 * MANY_ELEMENTS  # in one callback; what one turn may do inline makes 9,000
SLICE_MAX = 4 * SLICE_COST  # what one step of a work may add to a slice


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TenantLab]:
    root: Path = tmp_path_factory.mktemp("hostile")
    async with TenantLab(root) as lab:
        lab.rights = False
        yield lab


async def _names(lab: TenantLab, who: str) -> Names:
    wire = await lab.connect(who)
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[creatable(name="victim", num_partitions=50, replication_factor=1, assignments=[], configs=[])],
        timeout_ms=10_000,
    )
    await wire.call(request, 7)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition
    offset = partition(partition_index=0, committed_offset=1, committed_metadata="")
    commit = OffsetCommitRequest(
        group_id="victims", generation_id_or_member_epoch=-1, topics=[topic(name="victim", partitions=[offset])]
    )
    await wire.call(commit, 8)
    return Names("victim", "victims")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("who", [OPERATOR, ALPHA])
async def test_no_slice_of_a_hostile_request_is_long(lab: TenantLab, who: str) -> None:
    names = await _names(lab, who)
    kind = ListenerKind.OPERATOR if who == OPERATOR else ListenerKind.TENANT
    pacer, refused = lab.broker.pacer, list[str]()
    for hostile in hostile_requests(names, ELEMENTS, every_version=False):
        if kind not in hostile.api.kinds or hostile.api.name in DESTRUCTIVE:
            continue
        pacer.costliest = 0
        before = pacer.slices
        wire = await lab.connect(who)
        answer = await wire.send(encode_request(hostile.message, hostile.version, 1, "hostile"))
        wire.close()
        if answer is None:
            refused.append(hostile.label)
            continue
        assert pacer.costliest <= SLICE_MAX, hostile.label
        if _is_cut(hostile):
            assert pacer.slices > before + 3, hostile.label
    assert not refused
    assert not lab.fatal


@pytest.fixture
def only_own_garbage() -> Iterator[None]:
    """What other tests left is not cleared within a callback of this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("may", [True, False])
@pytest.mark.parametrize("who", [OPERATOR, ALPHA])
@pytest.mark.usefixtures("only_own_garbage")
async def test_no_callback_of_a_hostile_request_makes_many_calls(lab: TenantLab, who: str, may: bool) -> None:
    """Also of what no work counts, such as the names of a tenant's request becoming internal ones, and the refusal of
    all of it to a client without any right.

    Requests that are cut reach all of it in short portions.
    """
    names, kind = await _names(lab, who), ListenerKind.OPERATOR if who == OPERATOR else ListenerKind.TENANT
    for hostile in hostile_requests(names, MANY_ELEMENTS, every_version=False):
        if kind not in hostile.api.kinds or (may and hostile.api.name in DESTRUCTIVE):
            continue
        if hostile.api.key in CUTS or hostile.shape in ("same", "all"):
            continue
        wire, request = await lab.connect(who), encode_request(hostile.message, hostile.version, 1, "hostile")
        if not may:
            session = await lab.session(wire)
            nothing = lab.broker.security.authorizer.access("User:nobody", session.client_host, session.tenant)
            session.belong_to(session.principal, session.tenant, nothing)
        with counted_callbacks() as counted:
            await wire.send(request)
        wire.close()
        assert counted.most.total() <= CALLS_MAX, f"{hostile.label}: {counted.most.most_common(9)}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("node", "what", "request_of"),
    [
        ("broker", keeping_partition, "FindCoordinator"),
        ("controller", actor_of, "AlterPartitionReassignments"),
    ],
)
async def test_what_is_done_between_slices_counts_as_clients_work(
    lab: TenantLab, node: str, what: Callable[..., Any], request_of: str
) -> None:
    """A handler looks up the keys of a portion in a step of its task: others wait for it as for a slice. The node's
    clock moves by such calls alone."""
    clock, pacer = lab.clocks[node], getattr(lab, node).pacer
    hostile = next(
        one
        for one in hostile_requests(Names("victim", "victims"), ELEMENTS, every_version=False)
        if (one.api.name, one.shape) == (request_of, "distinct")
    )
    wire = await lab.connect(OPERATOR)
    with counted_calls(of=what) as count:
        begun, before = clock.monotonic(), pacer.clients_worked_s
        clock.steer(lambda: begun + count.calls * 0.001)
        try:
            assert await wire.send(encode_request(hostile.message, hostile.version, 1, "hostile"))
        finally:
            clock.steer(None)
    wire.close()
    assert count.calls >= ELEMENTS / 50
    assert pacer.clients_worked_s - before == pytest.approx(count.calls * 0.001)


def _is_cut(hostile: Hostile) -> bool:
    is_cut = {ApiKey.PRODUCE, ApiKey.FETCH, *CUTS}
    short = {ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS}
    return hostile.api.key in is_cut - short and hostile.shape == "distinct"


def test_the_generator_knows_every_list_and_every_version() -> None:
    names = Names("t", "g")
    made = {(one.api.key, one.version, one.shape) for one in hostile_requests(names, 3, every_version=True)}
    for key, listings in CUTS.items():
        for listing in listings:
            assert any(key == one[0] and listing.since <= one[1] <= listing.until for one in made), key
    for one in hostile_requests(names, 3, every_version=True):
        encode_request(one.message, one.version, 1, "c")
