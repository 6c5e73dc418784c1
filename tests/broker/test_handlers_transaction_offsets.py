"""TxnOffsetCommit in every version: who may commit, what the transaction's coordinator is asked, and who sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis import COMPILED_NAMES
from broker.coordination.transactions.config import ID_BYTES_MAX
from broker.handlers.transaction_offsets import ABORTABLE_FROM, ADDS_FROM, LOADING_FROM, TransactionOffsets
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.transactional_appends import Marked, Marker, Permission, Permissions
from broker.requests.context import RequestContext
from broker.security.session import ClientSession
from broker.tenancy.rewriter import TenantNames
from broker.tenancy.scope import ProxyAddress
from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import VerificationSettings
from kraft.image.metadata import EMPTY_IMAGE
from kraft.topic_names import GROUP_TOPIC
from tests.broker.broker_world import context, over_the_wire, reply_over_the_wire, versions_of
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.replication_lab import eventually
from tests.broker.test_handlers_groups import Groups, fetch
from tests.broker.transaction_lab import TXN_ID, ToldCoordinators
from wire.apis import ApiKey
from wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

pytestmark = pytest.mark.virtual_time

VERSIONS = versions_of("TxnOffsetCommit")
LAST = VERSIONS[-1]
MEMBERS_FROM = 3
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
_Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_Row = _Topic.TxnOffsetCommitRequestPartition
_Answer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


@dataclass
class GroupPartition(MemoryPartition):
    """Has the permissions of producers, as `broker.partitions.partition.Partition` has them."""

    permissions: dict[int, Permission] = field(default_factory=dict)
    leadership: Permissions = field(default_factory=Permissions)

    @property
    def transactions(self) -> GroupPartition:
        return self

    def begin(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, adds: bool, is_shared: bool
    ) -> Permission:
        assert is_shared, "the log alone says nothing of whose a transaction is"
        if producer_epoch < self.open_transactions.get(producer_id, -1):
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH)
        held = self.permissions.get(producer_id)
        if held is None or held.producer_epoch != producer_epoch:
            held = self.permissions[producer_id] = Permission(
                transactional_id, producer_id, producer_epoch, self.leadership, adds=adds
            )
        return held

    def grant(self, permission: Permission) -> None:
        permission.grant()

    def is_of_this_leadership(self, permission: Permission) -> bool:
        return permission.leadership is self.leadership

    def withdraw(self, permission: Permission) -> None:
        self.permissions.pop(permission.producer_id, None)

    def check_permission(self, permission: Permission) -> None:
        if self.permissions.get(permission.producer_id) is not permission:
            raise ProtocolError(ErrorCode.INVALID_TXN_STATE)

    def append_marker(self, marker: Marker, now_ms: int) -> Marked:
        self.permissions.pop(marker.producer_id, None)
        return super().append_marker(marker, now_ms)


class TransactionGroups(Groups):
    """A broker that coordinates every group; `coordinators` stands for the coordinators of all transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = self.offsets = GroupPartition(GROUP_TOPIC)
        self.coordinators = ToldCoordinators()
        self.asked_of: list[str] = []
        self.verification = TransactionVerification(VerificationSettings())
        self.verification.reach(self.coordinators)
        hosted = SimpleNamespace(find_leader=self.find_leader)
        self.handler = TransactionOffsets(self.coordinator, self.verification, cast(Any, hosted), lambda: self.image)

    def find_leader(self, topic: str, index: int) -> GroupPartition:
        assert (topic, index) == (GROUP_TOPIC, 0)
        if not self.partition.is_leader:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.partition

    async def send(
        self,
        version: int = LAST,
        offset: int = 5,
        *,
        epoch: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = "g",
        transactional_id: str = TXN_ID,
        topics: tuple[tuple[str, tuple[int, ...]], ...] = (("t", (0,)),),
    ) -> list[int]:
        """The error codes of the partitions, in order."""
        rows = [
            _Topic(
                name=name,
                partitions=[
                    _Row(partition_index=index, committed_offset=offset, committed_metadata=None) for index in indexes
                ],
            )
            for name, indexes in topics
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=7,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=rows,
        )
        ctx = context("TxnOffsetCommit", version)
        answer = reply_over_the_wire(ctx, await self.handler.txn_offset_commit(ctx, over_the_wire(version, request)))
        assert [(one.name, tuple(row.partition_index for row in one.partitions)) for one in answer.topics] == list(
            topics
        )
        return [row.error_code for one in answer.topics for row in one.partitions]

    async def end(self, *, commit: bool, epoch: int = 0) -> None:
        marker = Marker(7, epoch, commit, 1, new_protocol=False)
        await self.runtime.append_marker(GROUP_TOPIC, 0, marker)

    async def offset(self, version: int = 9) -> tuple[int, int]:
        """What a reader of stable offsets is shown, and its error."""
        ((_, _, offset, code), _) = (await fetch(self, version))[1]
        return offset, code


@pytest.fixture
async def groups() -> AsyncIterator[TransactionGroups]:
    world = TransactionGroups()
    await world.start()
    yield world
    world.verification.stop()
    await world.runtime.stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
async def test_an_offset_counts_when_its_transaction_commits(
    groups: TransactionGroups, version: int, commit: bool
) -> None:
    assert await groups.commit(9, 1) == 0
    assert await groups.send(version) == [0]
    assert await groups.offset() == (-1, UNSTABLE)
    assert await groups.offset(6) == (1, 0), "who does not ask for stable offsets sees what counted before"
    await groups.end(commit=commit)
    assert await groups.offset() == (5 if commit else 1, 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_coordinator_is_asked_once_in_a_transaction(groups: TransactionGroups, version: int) -> None:
    assert await groups.send(version) == [0]
    assert await groups.send(version, 6) == [0]
    (question,) = groups.coordinators.asked
    assert question == (TXN_ID, 7, 0, GROUP_TOPIC, 0, version < ADDS_FROM)
    await groups.end(commit=True)
    assert await groups.send(version, 7) == [0]
    assert len(groups.coordinators.asked) == 2, "the next transaction"
    assert await groups.offset() == (-1, UNSTABLE)


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_id_that_no_coordinator_has_is_not_asked_about(groups: TransactionGroups, version: int) -> None:
    """The longest ones that a client can send become longer than any string in a request when they get a prefix."""
    for length in (ID_BYTES_MAX + 1, 0x7FFF):
        sent = await groups.send(version, transactional_id="x" * length)
        assert sent == [ErrorCode.INVALID_PRODUCER_ID_MAPPING], "as a coordinator says of an id that it does not know"
    assert groups.coordinators.asked == []
    assert await groups.send(version, transactional_id="x" * ID_BYTES_MAX) == [0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_partition_that_does_not_exist_is_not_asked_about(groups: TransactionGroups, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await groups.send(version, topics=(("none", (0,)),)) == [unknown]
    assert groups.coordinators.asked == []
    assert await groups.send(version, topics=(("t", (7, 0)), ("none", (0,)))) == [unknown, 0, unknown]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= MEMBERS_FROM])
async def test_a_member_commits_in_its_generation(groups: TransactionGroups, version: int) -> None:
    member, generation = await groups.member()
    assert await groups.send(version, member=member, generation=generation) == [0]
    for given, code in (
        ((member, generation + 1), ErrorCode.ILLEGAL_GENERATION),
        ((member, generation - 1), ErrorCode.ILLEGAL_GENERATION),
        (("stranger", generation), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert await groups.send(version, 9, member=given[0], generation=given[1]) == [code]
    await groups.end(commit=True)
    assert await groups.offset() == (5, 0)


async def test_older_versions_name_no_member_and_are_let_through(groups: TransactionGroups) -> None:
    await groups.member()
    assert await groups.send(MEMBERS_FROM - 1) == [0]


async def test_a_static_member_that_was_replaced_is_fenced(groups: TransactionGroups) -> None:
    first, _ = await groups.member("i")
    second, generation = await groups.member("i")
    assert first != second
    answers = [await groups.send(member=member, generation=generation, instance="i") for member in (first, second)]
    assert answers == [[ErrorCode.FENCED_INSTANCE_ID], [0]]
    unknown = await groups.send(member=second, generation=generation, instance="j")
    assert unknown == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_a_generation_of_a_group_that_does_not_exist(groups: TransactionGroups) -> None:
    assert await groups.send(group="other", member="m", generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    assert await groups.send(group="other") == [0], "a group that only commits"
    assert await groups.send(group="") == [ErrorCode.INVALID_GROUP_ID]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_zombie_is_refused(groups: TransactionGroups, version: int) -> None:
    """By its coordinator, where it begins a transaction, and by the log, where its successor has begun one."""
    groups.coordinators.answer = ErrorCode.PRODUCER_FENCED
    assert await groups.send(version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    groups.coordinators.answer = ErrorCode.NONE
    assert await groups.send(version, epoch=1) == [0]
    assert await groups.send(version, 9, epoch=0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    await groups.end(commit=True, epoch=1)
    assert await groups.offset() == (5, 0)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < ADDS_FROM])
async def test_the_coordinator_is_asked_also_where_partitions_of_data_need_no_word(
    groups: TransactionGroups, version: int
) -> None:
    """Otherwise the log would take a stranger's epoch for the producer's, and refuse the marker of its own."""
    assert await groups.send(version) == [0]
    groups.verification.configure(VerificationSettings(verification_enable=False))
    groups.coordinators.answer = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await groups.send(version, 9, epoch=32_767, group="stranger") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert [question.verify_only for question in groups.coordinators.asked] == [True, True]
    assert groups.partition.open_transactions == {7: 0}
    await groups.end(commit=True)
    assert await groups.offset() == (5, 0)


async def test_an_answer_that_comes_after_the_marker_begins_nothing(groups: TransactionGroups) -> None:
    groups.coordinators.answer = None
    sent = asyncio.create_task(groups.send())
    await eventually(lambda: groups.coordinators.held)
    await groups.end(commit=False)
    groups.coordinators.release()
    assert await sent == [ErrorCode.INVALID_TXN_STATE]
    assert groups.partition.log.batches == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
async def test_errors_of_the_transactions_coordinator(
    groups: TransactionGroups, version: int, answer: ErrorCode, code: ErrorCode
) -> None:
    """As clients of that version know them. Afterwards the transaction goes on."""
    groups.coordinators.answer = answer
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await groups.send(version) == [code]
    assert groups.partition.log.batches == []
    groups.coordinators.answer = ErrorCode.NONE
    assert await groups.send(version) == [0]


async def test_a_group_whose_coordinator_has_moved_is_looked_for_elsewhere(groups: TransactionGroups) -> None:
    groups.partition.is_leader = False
    assert await groups.send() == [ErrorCode.NOT_COORDINATOR]
    assert groups.coordinators.asked == []


async def test_a_coordinator_that_moves_while_the_transactions_is_asked(groups: TransactionGroups) -> None:
    groups.coordinators.answer = None
    sent = asyncio.create_task(groups.send())
    await eventually(lambda: groups.coordinators.held)
    groups.partition.depose()
    groups.runtime.resigned(GROUP_TOPIC, 0)
    groups.coordinators.release()
    assert await sent == [ErrorCode.NOT_COORDINATOR]


def test_a_tenants_names_get_its_prefix() -> None:
    names = TenantNames(lambda: EMPTY_IMAGE, ProxyAddress("example.org", 9094), COMPILED_NAMES)
    session = ClientSession("L", False, "h", None, tenant="lkc-aaaaaa")
    of_tenant = RequestContext(session, int(ApiKey.TXN_OFFSET_COMMIT), LAST, 1, "c")
    row = _Row(partition_index=0, committed_offset=5, committed_metadata="lkc")
    asked = TxnOffsetCommitRequest(
        transactional_id="orders", group_id="g", member_id="m", topics=[_Topic(name="t", partitions=[row])]
    )
    inner = names.inward(of_tenant, asked)
    assert (inner.transactional_id, inner.group_id, inner.topics[0].name) == (
        "lkc-aaaaaa_orders",
        "lkc-aaaaaa_g",
        "lkc-aaaaaa_t",
    )
    assert (inner.member_id, inner.topics[0].partitions) == ("m", [row])
    answer = TxnOffsetCommitResponse(topics=[_Answer(name="lkc-aaaaaa_t", partitions=[])])
    assert names.outward(of_tenant, answer).topics[0].name == "t"
