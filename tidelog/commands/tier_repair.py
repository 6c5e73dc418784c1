"""`tidelog tier check | restore`: whether everything about the tier agrees, and deleted topics under new names."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import ErrorCode, ProtocolError
from common.identifiers import random_uuid
from common.machine import MachineClock
from common.settings import SHORT_MAX
from tidelog.admin.admin_client import CommandOptions, admin_client, error_text
from tidelog.commands.topics import Configs, parse_configs
from tidelog.output import EXIT_USAGE, fail, show

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore
    from tidelog.admin.library_client import AdminClient
    from tidelog.tier.access import Answers
    from tiering.bucket.keys import PartitionPath, TierRoot
    from tiering.upkeep.inventory import FoundTopic
    from tiering.upkeep.restoring import NewTopic

Tier = Annotated[str | None, typer.Option("--tier", help="The object store, if not as the brokers say.", metavar="URI")]
READY_WITHIN_S = 120.0
LOOK_S = 0.2
ASK_TIMEOUT_MS = 30_000
REMOTE_STORAGE = "remote.storage.enable"
_IN_DOUBT = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)


def check(
    topic: Annotated[str | None, typer.Argument(help="This topic alone.", metavar="[TOPIC]")] = None,
    tier: Tier = None,
    *,
    options: CommandOptions,
) -> None:
    """Compare manifests, `__tier_state` and the names and sizes of objects. Exit code 1 when something disagrees."""
    with admin_client(options) as client:
        check_tier(client, topic, tier, as_json=options.as_json)


def check_tier(client: AdminClient, topic: str | None, tier: str | None, *, as_json: bool) -> None:
    """`check`, with the brokers' state from `client`."""
    from tidelog.tier.access import ask_brokers, opened_store, store_trouble  # noqa: PLC0415
    from tidelog.tier.check import Patience, check_partition, rows  # noqa: PLC0415

    found: list[dict[str, Any]] = []
    answers = ask_brokers(client)
    paths = _paths(client, answers, topic)
    if topic is not None and not paths:
        fail(f"there is no tiered topic {topic}")
    patience = Patience()
    down = store_trouble(answers, tier, _say)
    with contextlib.nullcontext() if down else opened_store(answers, tier) as opened:
        for path in paths:
            found += rows(path, check_partition(client, opened, path, patience, say=_say))
    report = {"partitions": len(paths), "store": down or "answers", "disagreements": found}
    if as_json:
        print(json.dumps(report))
    else:
        if down:
            print(f"the object store does not answer, so __tier_state alone was read: {down}")
        columns = ["topic", "partition", "what", "disagreement"]
        show(
            found,
            as_json=False,
            columns=columns,
            empty=f"{len(paths)} partitions " + ("agree" if not down else "can be read"),
        )
    if down or any(not row["harmless"] for row in found):
        raise typer.Exit(1)


def _say(text: str) -> None:
    """Write to standard error, because programs read the result on standard output."""
    print(text, file=sys.stderr)


def restore(
    topic: Annotated[str, typer.Argument(help="The deleted topic; @ID says which.", metavar="TOPIC[@ID]")],
    as_: Annotated[str, typer.Option("--as", help="The name of the topic that is made of it.", metavar="NAME")],
    config: Configs = None,
    replicas: Annotated[
        int, typer.Option(min=-1, max=SHORT_MAX, help="-1: the cluster's default.replication.factor.")
    ] = -1,
    without_partition: Annotated[
        list[int] | None,
        typer.Option("--without-partition", help="This one's manifest is lost: let it begin empty.", metavar="N"),
    ] = None,
    allow_holes: Annotated[
        bool,
        typer.Option(
            "--allow-holes", help="Where objects are missing, begin behind them; take manifests that are behind."
        ),
    ] = False,
    tier: Tier = None,
    *,
    options: CommandOptions,
) -> None:
    """Bring a deleted topic back under a new name, at its old offsets, while tidelog.tier.delete.delay.ms lasts.

    Records that were only on brokers when it was deleted are lost. The new topic is kept without bounds unless --config
    says otherwise; its other settings are defaults.
    """
    from kraft.topic_names import check_topic_name  # noqa: PLC0415
    from tidelog.tier.access import ask_brokers, live_topics, opened_store, split_name  # noqa: PLC0415
    from tiering.upkeep.inventory import find_topics  # noqa: PLC0415

    name, topic_id = split_name(topic)
    try:
        check_topic_name(as_)  # before everything is copied
    except ProtocolError as error:
        fail(f"--as: {error.message}", EXIT_USAGE)
    given = parse_configs(config or [])
    if given.get(REMOTE_STORAGE, "true").strip().lower() != "true":
        fail(f"{REMOTE_STORAGE} cannot be switched off: what is restored lies in the tier alone")
    configs = {"retention.ms": "-1", "retention.bytes": "-1"} | given
    with admin_client(options) as client:
        answers, live = ask_brokers(client), live_topics(client)
        store_status = answers.store
        if store_status is not None and store_status.stale is not None:
            fail(store_status.stale)
        if as_ in live:
            fail(f"there is a topic {as_} already")
        with opened_store(answers, tier) as (store, root):
            topics = store.wait(lambda: find_topics(store.store, root, name))
            without = without_partition or []
            found = _chosen(topics, name, topic_id, {known.topic_id for known in live.values()}, without)
            left_out = _check_newest(client, store, root, found, as_, allow_holes=allow_holes)
            left_out += _check_whole(store, root, found, as_, without, answers, allow_holes=allow_holes)
            left_out += _undecided(store, root, found)
            new_id = random_uuid(random.SystemRandom())
            _restore(client, store, root, found, (as_, new_id), configs, replicas, answers, "; ".join(left_out))
        _wait_ready(client, found, as_)
    for text in left_out:
        print(f"left out: {text}", file=sys.stderr)
    rows = [
        {
            "topic": as_,
            "partition": index,
            "log_start_offset": partition.log_start_offset,
            "end_offset": partition.end_offset,
        }
        for index, partition in found.partitions.items()
    ]
    show(rows, as_json=options.as_json, columns=["topic", "partition", "log_start_offset", "end_offset"])


# checking ----------------------------------------------------------------------------------------------------


def _paths(client: AdminClient, answers: Answers, topic: str | None) -> list[PartitionPath]:
    """The existing tiered partitions, and those of deleted topics during their delay."""
    from tiering.bucket.keys import PartitionPath  # noqa: PLC0415

    found: dict[tuple[str, str, int], None] = {}
    for broker in answers.brokers:
        for led in broker.partitions:
            found[led.topic, led.topic_id, led.partition] = None
        for dropped in broker.dropped:
            found[dropped.topic, dropped.topic_id, dropped.partition] = None
    return [
        PartitionPath(name, bytes.fromhex(topic_id), index)
        for name, topic_id, index in sorted(found)
        if topic in (None, name)
    ]


# restoring ---------------------------------------------------------------------------------------------------


def _chosen(
    topics: list[FoundTopic], name: str, topic_id: bytes | None, live: set[bytes], without: list[int]
) -> FoundTopic:
    """The selected topic; ends the command if it exists, was removed completely, or is ambiguous."""
    from tiering.upkeep.restoring import CannotRestore, check_restorable  # noqa: PLC0415

    if topic_id in live or (topics and all(topic.topic_id in live for topic in topics)):
        fail(f"the topic {name} lives: only a deleted one is restored")
    deleted = [topic for topic in topics if topic.topic_id not in live and topic_id in (None, topic.topic_id)]
    usable, problem = [], ""
    for topic in deleted:
        try:
            check_restorable(topic, without)
            usable.append(topic)
        except CannotRestore as error:
            problem = str(error)
    if not usable:
        fail(f"{name} cannot be restored: {problem or 'the object store holds nothing of it'}")
    if len(usable) > 1:
        names = ", ".join(f"{name}@{topic.topic_id.hex()}" for topic in usable)
        fail(f"several topics {name} were deleted; name one: {names}")
    return usable[0]


def _check_newest(
    client: AdminClient, store: BlockingStore, root: TierRoot, found: FoundTopic, name: str, *, allow_holes: bool
) -> list[str]:
    """What the manifests do not show yet, as messages; ends the command unless that is allowed."""
    from tidelog.tier.newest import late_partitions  # noqa: PLC0415

    late, silent = late_partitions(client, store, root, found)
    for index, reason in silent.items():
        print(f"whether the manifest of partition {index} is the newest is not known: {reason}", file=sys.stderr)
    problems = [f"partition {index}: {text}" for index, text in late.items()]
    if problems and not allow_holes:
        words = "try again when `tidelog tier check` agrees, or take what it shows with --allow-holes"
        fail(f"{found.name} cannot be restored as {name}: {'; '.join(problems)}; {words}")
    return problems


def _check_whole(
    store: BlockingStore,
    root: TierRoot,
    found: FoundTopic,
    name: str,
    without: list[int],
    answers: Answers,
    *,
    allow_holes: bool,
) -> list[str]:
    """What is lost according to the bucket, its exports and the brokers, as messages; ends the command unless that is
    allowed."""
    from tiering.upkeep.restoring import (  # noqa: PLC0415
        CannotRestore,
        ObjectsLost,
        PartitionsLost,
        check_whole,
        known_partitions,
    )

    known = store.wait(lambda: known_partitions(store.store, root, found.topic_id))
    for broker in answers.brokers:
        known.update(gone.partition for gone in broker.dropped if gone.topic_id == found.topic_id.hex())
    try:
        holes = store.wait(lambda: check_whole(store.store, root, found, known, without, allow_holes=allow_holes))
    except PartitionsLost as error:
        words = " ".join(f"--without-partition {index}" for index in error.partitions)
        fail(f"{found.name} cannot be restored as {name}: {error}; {words} restores the others and leaves it empty")
    except ObjectsLost as error:
        words = "--allow-holes restores what lies behind them"
        fail(f"{found.name} cannot be restored as {name}: {error}; {words}")
    except CannotRestore as error:
        fail(f"{found.name} cannot be restored as {name}: {error}")
    return [f"partition {index}: everything (no manifest)" for index in without] + [str(hole) for hole in holes]


def _undecided(store: BlockingStore, root: TierRoot, found: FoundTopic) -> list[str]:
    """Transactions that the topic's first leaders abort."""
    from tiering.upkeep.undecided import undecided_transactions  # noqa: PLC0415

    opened = store.wait(lambda: undecided_transactions(store.store, root, found.partitions.values()))
    return [f"{one}: only the brokers knew how its transaction ended, so it is aborted" for one in opened]


def _restore(
    client: AdminClient,
    store: BlockingStore,
    root: TierRoot,
    found: FoundTopic,
    new: tuple[str, bytes],
    configs: dict[str, str],
    replicas: int,
    answers: Answers,
    left_out: str,
) -> None:
    """Check, copy, describe, create. The copies are removed if the topic cannot be created."""
    from tiering.upkeep.restoring import CannotRestore, NewTopic, copy_topic, remove_copies, write_manifests  # noqa: PLC0415

    chance = random.SystemRandom()
    incarnation = answers.store.incarnation if answers.store is not None else 1
    topic = NewTopic(*new, found.tenant, incarnation)
    now_ms = MachineClock().wall_ms()
    if problem := _refusal(client, found, topic, configs, replicas):
        fail(f"{found.name} cannot be restored as {topic.name}: {problem}")
    try:
        store.wait(lambda: copy_topic(store.store, root, found, topic, _progress()))
        store.wait(lambda: write_manifests(store.store, root, found, topic, now_ms, lambda: random_uuid(chance).hex()))
        problem = _create(client, found, topic, configs, replicas, left_out)
    except CannotRestore as error:
        problem = str(error)
    if problem:
        store.wait(lambda: remove_copies(store.store, root, topic))
        fail(f"{found.name} cannot be restored as {topic.name}: {problem}")


def _refusal(
    client: AdminClient, found: FoundTopic, new: NewTopic, configs: dict[str, str], replicas: int
) -> str | None:
    """Why the controller would reject such a topic, before anything is copied."""
    from tiering.upkeep.restoring import first_epochs  # noqa: PLC0415
    from wire.messages import CreateTopicsRequest  # noqa: PLC0415

    topic = CreateTopicsRequest.CreatableTopic(
        name=new.name,
        num_partitions=len(first_epochs(found)),
        replication_factor=replicas,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs | {REMOTE_STORAGE: "true"}).items()
        ],
    )
    response = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=ASK_TIMEOUT_MS, validate_only=True))
    (row,) = response.topics
    return error_text({"error_code": row.error_code, "error_message": row.error_message})


def _create(
    client: AdminClient, found: FoundTopic, new: NewTopic, configs: dict[str, str], replicas: int, left_out: str
) -> str | None:
    from tiering.upkeep.restoring import first_epochs  # noqa: PLC0415
    from wire.messages import RestoreTopicRequest, schema_uuid  # noqa: PLC0415

    request = RestoreTopicRequest(
        topic_name=new.name,
        topic_id=schema_uuid(new.topic_id),
        replication_factor=replicas,
        leader_epochs=first_epochs(found),
        configs=[RestoreTopicRequest.RestoredTopicConfig(name=key, value=value) for key, value in configs.items()],
        left_out=left_out,
    )
    response = client.send(request)
    problem = error_text({"error_code": response.error_code, "error_message": response.error_message})
    if response.error_code in _IN_DOUBT:  # the topic may exist and need its objects; if not, the sweeper deletes them
        fail(f"whether {new.name} was made is not known: {problem}; see `tidelog topics list` and tier status")
    return problem


def _wait_ready(client: AdminClient, found: FoundTopic, name: str) -> None:
    """Wait until every partition's leader has adopted the manifests."""
    from tidelog.tier.access import ask_brokers  # noqa: PLC0415

    deadline = time.monotonic() + READY_WITHIN_S
    missing: dict[int, None] = {}
    while time.monotonic() < deadline:
        missing = dict.fromkeys(found.partitions)
        for broker in ask_brokers(client).brokers:
            for led in broker.partitions:
                if led.topic == name and led.claimed:
                    missing.pop(led.partition, None)
        if not missing:
            return
        time.sleep(LOOK_S)
    names = ", ".join(map(str, missing))
    fail(f"{name} was made, but its partitions {names} have not begun within {READY_WITHIN_S:g} s; see tier status")


def _progress() -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        if done == total or done % 100 == 0:
            print(f"{done} of {total} segments copied", file=sys.stderr, flush=True)

    return tell
