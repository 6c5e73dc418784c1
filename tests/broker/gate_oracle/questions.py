"""The requests: for each API at least one that asks for something there, something absent and something hidden.

Nothing is changed by a request that is allowed, but by the few whose changes are undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from records.builder import build_batch
from records.record import Record
from tests.broker.gate_oracle.cluster_questions import about_the_cluster, api_versions
from tests.broker.gate_oracle.things import (
    ABSENT,
    COMMITTED,
    DOOMED,
    GROUP,
    HIDDEN,
    HIDDEN_GROUP,
    HIDDEN_TRANSACTION,
    NAMED,
    NO_GROUP,
    NO_TRANSACTION,
    STRANGER,
    THERE,
    TRANSACTION,
    Ids,
    by_name_or_id,
    message,
)
from wire.apis import APIS

Build = Callable[["Ids", int], Any]


@dataclass(frozen=True)
class Question:
    api: str
    label: str
    build: Build
    versions: range
    alone: bool = False  # no two of it are asked at once: it makes a topic, or has to do with one transaction
    undo: bool = False  # it may delete a topic; alone too

    @property
    def key(self) -> int:
        return next(key for key, api in APIS.items() if api.name == self.api)


# records ---------------------------------------------------------------------------------------------------


def produce(ids: Ids, version: int, *, transactional: bool = False) -> Any:
    records = [Record(0, 1_700_000_000_000, b"key", b"value")]
    batch = (
        build_batch(records, transactional=True, producer_id=STRANGER, producer_epoch=0, base_sequence=0)
        if transactional
        else build_batch(records)
    )
    topics = [
        by_name_or_id(ids, version >= 13, "name", name) | {"partition_data": [{"index": 0, "records": bytes(batch)}]}
        for name in NAMED
    ]
    transaction = TRANSACTION if transactional else None
    return message("Produce", transactional_id=transaction, acks=-1, timeout_ms=5_000, topic_data=topics)


def fetch(ids: Ids, version: int) -> Any:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 1 << 16,
    }  # fmt: skip
    topics = [by_name_or_id(ids, version >= 13, "topic", name) | {"partitions": [partition]} for name in NAMED]
    return message("Fetch", replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
                   session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=[], rack_id="")  # fmt: skip


def list_offsets(ids: Ids, version: int) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": name, "partitions": [partition]} for name in NAMED]
    return message("ListOffsets", replica_id=-1, isolation_level=0, topics=topics, timeout_ms=5_000)


def delete_records(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in NAMED]
    return message("DeleteRecords", topics=topics, timeout_ms=5_000)


def leader_epochs(ids: Ids, version: int) -> Any:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": name, "partitions": [partition]} for name in NAMED]
    return message("OffsetForLeaderEpoch", replica_id=-1, topics=topics)


def init_producer_id(ids: Ids, version: int, *, transaction: str | None) -> Any:
    return message("InitProducerId", transactional_id=transaction, transaction_timeout_ms=1_000, producer_id=-1,
                   producer_epoch=-1)  # fmt: skip


def describe_producers(ids: Ids, version: int) -> Any:
    return message("DescribeProducers", topics=[{"name": name, "partition_indexes": [0]} for name in NAMED])


# transactions ----------------------------------------------------------------------------------------------


def _of_transaction(transaction: str) -> dict[str, Any]:
    return {"transactional_id": transaction, "producer_id": STRANGER, "producer_epoch": 0}


def add_partitions(ids: Ids, version: int, *, transaction: str) -> Any:
    topics = [{"name": name, "partitions": [0]} for name in NAMED]
    if version < 4:
        of = {f"v3_and_below_{field}": value for field, value in _of_transaction(transaction).items()}
        return message("AddPartitionsToTxn", **of, v3_and_below_topics=topics)
    return message("AddPartitionsToTxn",
                   transactions=[_of_transaction(transaction) | {"verify_only": False, "topics": topics}])  # fmt: skip


def add_offsets(ids: Ids, version: int, *, group: str) -> Any:
    return message("AddOffsetsToTxn", **_of_transaction(TRANSACTION), group_id=group)


def end_transaction(ids: Ids, version: int, *, transaction: str) -> Any:
    return message("EndTxn", **_of_transaction(transaction), committed=True)


def write_markers(ids: Ids, version: int) -> Any:
    """Aborts, which also operators may write: nothing is open."""
    topics = [{"name": name, "partition_indexes": [0]} for name in NAMED]
    marker = {"producer_id": STRANGER, "producer_epoch": 0, "transaction_result": False, "topics": topics,
              "coordinator_epoch": 0}  # fmt: skip
    return message("WriteTxnMarkers", markers=[marker])


def commit_in_transaction(ids: Ids, version: int, *, group: str, transaction: str = TRANSACTION) -> Any:
    partition = {
        "partition_index": 0, "committed_offset": COMMITTED, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    topics = [{"name": name, "partitions": [partition]} for name in NAMED]
    return message("TxnOffsetCommit", **_of_transaction(transaction), group_id=group, generation_id=-1, member_id="",
                   group_instance_id=None, topics=topics)  # fmt: skip


def describe_transactions(ids: Ids, version: int) -> Any:
    return message("DescribeTransactions", transactional_ids=[TRANSACTION, NO_TRANSACTION, HIDDEN_TRANSACTION])


def list_transactions(ids: Ids, version: int, *, pattern: str | None = None) -> Any:
    return message("ListTransactions", state_filters=["Empty", "NoSuchState"], producer_id_filters=[],
                   duration_filter=-1, transactional_id_pattern=pattern)  # fmt: skip


# topics ----------------------------------------------------------------------------------------------------


def metadata(ids: Ids, version: int, *, topics: list[dict[str, Any]] | None, creates: bool = False) -> Any:
    return message(
        "Metadata", topics=[] if topics is None and version == 0 else topics, allow_auto_topic_creation=creates,
        include_cluster_authorized_operations=True, include_topic_authorized_operations=True,
    )  # fmt: skip


def metadata_named(ids: Ids, version: int, *, creates: bool) -> Any:
    ids.serial += 1
    absent = f"{ABSENT}-{ids.serial}" if creates else ABSENT
    return metadata(ids, version, topics=[{"name": name} for name in (THERE, absent, HIDDEN)], creates=creates)


def metadata_by_id(ids: Ids, version: int) -> Any:
    return metadata(ids, version, topics=[{"topic_id": ids.of(name), "name": None} for name in NAMED])


def create_topics(ids: Ids, version: int) -> Any:
    row = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [row | {"name": name} for name in NAMED]
    return message("CreateTopics", topics=topics, timeout_ms=5_000, validate_only=True)


def delete_topics(ids: Ids, version: int, *, by_id: bool = False) -> Any:
    names = (DOOMED, ABSENT, HIDDEN)
    if version < 6:
        return message("DeleteTopics", topic_names=list(names), timeout_ms=5_000)
    topics = [{"name": None, "topic_id": ids.of(name)} if by_id else {"name": name} for name in names]
    return message("DeleteTopics", topics=topics, timeout_ms=5_000)


def create_partitions(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "count": 5, "assignments": None} for name in NAMED]
    return message("CreatePartitions", topics=topics, timeout_ms=5_000, validate_only=True)


def describe_topic_partitions(ids: Ids, version: int, *, names: tuple[str, ...]) -> Any:
    return message("DescribeTopicPartitions", topics=[{"name": name} for name in names],
                   response_partition_limit=2_000, cursor=None)  # fmt: skip


# groups ----------------------------------------------------------------------------------------------------


def offset_commit(ids: Ids, version: int, *, group: str = GROUP) -> Any:
    partition = {
        "partition_index": 0, "committed_offset": COMMITTED, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    topics = [by_name_or_id(ids, version >= 10, "name", name) | {"partitions": [partition]} for name in NAMED]
    return message("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, member_id="",
                   group_instance_id=None, retention_time_ms=-1, topics=topics)  # fmt: skip


def offset_fetch(ids: Ids, version: int, *, everything: bool) -> Any:
    named = [by_name_or_id(ids, version >= 10, "name", name) | {"partition_indexes": [0]} for name in NAMED]
    topics = None if everything else named
    if version < 8:
        return message("OffsetFetch", group_id=GROUP, topics=topics, require_stable=False)
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
              for group in (GROUP, NO_GROUP, HIDDEN_GROUP)]  # fmt: skip
    return message("OffsetFetch", groups=groups, require_stable=False)


def find_coordinator(ids: Ids, version: int, *, kind: int, keys: tuple[str, ...]) -> Any:
    return message("FindCoordinator", key=keys[0], key_type=kind, coordinator_keys=list(keys))


def join_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("JoinGroup", group_id=group, session_timeout_ms=1, rebalance_timeout_ms=1, member_id="m",
                   group_instance_id=None, protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
                   reason=None)  # fmt: skip


def heartbeat(ids: Ids, version: int, *, group: str) -> Any:
    return message("Heartbeat", group_id=group, generation_id=1, member_id="m", group_instance_id=None)


def leave_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("LeaveGroup", group_id=group, member_id="m", members=[{"member_id": "m", "group_instance_id": None}])


def sync_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("SyncGroup", group_id=group, generation_id=1, member_id="m", group_instance_id=None,
                   protocol_type="consumer", protocol_name="range", assignments=[])  # fmt: skip


def describe_groups(ids: Ids, version: int) -> Any:
    return message("DescribeGroups", groups=[GROUP, NO_GROUP, HIDDEN_GROUP], include_authorized_operations=True)


def list_groups(ids: Ids, version: int) -> Any:
    return message("ListGroups", states_filter=[], types_filter=[])


def delete_groups(ids: Ids, version: int) -> Any:
    return message("DeleteGroups", groups_names=[NO_GROUP, HIDDEN_GROUP])


def offset_delete(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "partitions": [{"partition_index": 1}]} for name in NAMED]
    return message("OffsetDelete", group_id=GROUP, topics=topics)


Ask = Callable[..., None]


def _about_records(ask: Ask) -> None:
    ask("Produce", "named", produce)
    ask("Produce", "transactional", partial(produce, transactional=True), alone=True)
    ask("Fetch", "named", fetch)
    ask("ListOffsets", "named", list_offsets)
    ask("Metadata", "all", partial(metadata, topics=None))
    ask("Metadata", "named", partial(metadata_named, creates=False), low=4)
    ask("Metadata", "creating", partial(metadata_named, creates=True), alone=True)
    ask("Metadata", "by id", metadata_by_id, low=12)
    ask("OffsetCommit", "named", offset_commit)
    ask("OffsetCommit", "hidden group", partial(offset_commit, group=HIDDEN_GROUP))
    ask("OffsetFetch", "named", partial(offset_fetch, everything=False))
    ask("OffsetFetch", "all", partial(offset_fetch, everything=True), low=2)
    ask("FindCoordinator", "group", partial(find_coordinator, kind=0, keys=(GROUP, HIDDEN_GROUP)))
    ask("FindCoordinator", "hidden group", partial(find_coordinator, kind=0, keys=(HIDDEN_GROUP,)))
    ask(
        "FindCoordinator",
        "transaction",
        partial(find_coordinator, kind=1, keys=(TRANSACTION, HIDDEN_TRANSACTION)),
        low=1,
    )


def _about_groups_and_topics(ask: Ask) -> None:
    for api, build in (
        ("JoinGroup", join_group),
        ("Heartbeat", heartbeat),
        ("LeaveGroup", leave_group),
        ("SyncGroup", sync_group),
    ):
        ask(api, "there", partial(build, group=GROUP))
        ask(api, "absent", partial(build, group=NO_GROUP))
        ask(api, "hidden", partial(build, group=HIDDEN_GROUP))
    ask("DescribeGroups", "named", describe_groups)
    ask("ListGroups", "all", list_groups)
    ask("ApiVersions", "all", api_versions)
    ask("CreateTopics", "named", create_topics)
    ask("DeleteTopics", "named", delete_topics, undo=True)
    ask("DeleteTopics", "by id", partial(delete_topics, by_id=True), low=6, undo=True)
    ask("DeleteRecords", "named", delete_records)
    ask("InitProducerId", "idempotent", partial(init_producer_id, transaction=None))
    ask("InitProducerId", "transactional", partial(init_producer_id, transaction=TRANSACTION), alone=True)
    ask("OffsetForLeaderEpoch", "named", leader_epochs)
    ask("CreatePartitions", "named", create_partitions)
    ask("DeleteGroups", "named", delete_groups)
    ask("OffsetDelete", "named", offset_delete)
    ask("DescribeProducers", "named", describe_producers)
    ask("DescribeTopicPartitions", "all", partial(describe_topic_partitions, names=()))
    ask("DescribeTopicPartitions", "named", partial(describe_topic_partitions, names=NAMED))


def _about_transactions(ask: Ask) -> None:
    """After the question that makes the transactional id."""
    for transaction in (TRANSACTION, HIDDEN_TRANSACTION):
        label = "there" if transaction == TRANSACTION else "hidden"
        ask("AddPartitionsToTxn", label, partial(add_partitions, transaction=transaction), alone=True)
        ask("EndTxn", label, partial(end_transaction, transaction=transaction), alone=True)
        ask("TxnOffsetCommit", label, partial(commit_in_transaction, group=GROUP, transaction=transaction), alone=True)
    for api, build in (("AddOffsetsToTxn", add_offsets), ("TxnOffsetCommit", commit_in_transaction)):
        ask(api, "group", partial(build, group=GROUP), alone=True)
        ask(api, "hidden group", partial(build, group=HIDDEN_GROUP), alone=True)
    ask("WriteTxnMarkers", "aborts", write_markers)
    ask("DescribeTransactions", "named", describe_transactions)
    ask("ListTransactions", "empty", list_transactions)
    ask("ListTransactions", "by pattern", partial(list_transactions, pattern="x-.*"), low=2)
    ask("ListTransactions", "by a broken pattern", partial(list_transactions, pattern="x-("), low=2)


def _all() -> list[Question]:
    found: list[Question] = []

    def ask(api: str, label: str, build: Build, low: int = 0, **more: Any) -> None:
        row = next(row for row in APIS.values() if row.name == api)
        versions = range(max(low, row.min_version), row.max_version + 1)
        found.append(Question(api, label, build, versions, **more))

    _about_records(ask)
    _about_groups_and_topics(ask)
    _about_transactions(ask)
    about_the_cluster(ask)
    return found


QUESTIONS = _all()
