"""`tidelog tier status | ls`: the tier's progress and content as reported by brokers; the store may be down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.internal_topics import Internal, say_hidden, without_internal
from tidelog.moments import utc
from tidelog.output import fail, show

if TYPE_CHECKING:
    from tidelog.tier.access import Answers
    from tiering.bucket.verified import Outcome, TopicOutcome, Verifications
    from tiering.shard.description import LedStatus

PARTITION_COLUMNS = [
    "topic", "partition", "leader", "log_start", "local_start", "high_watermark", "tier_end", "segments", "tier_bytes",
    "lag_bytes", "claimed", "deleting", "rewritten", "trouble",
]  # fmt: skip
SEGMENT_COLUMNS = [
    "partition", "base_offset", "end_offset", "bytes", "records", "latest", "state", "rewritten", "object",
]  # fmt: skip


def status(
    topic: Annotated[str | None, typer.Argument(help="This topic alone.", metavar="[TOPIC]")] = None,
    internal: Internal = False,
    *,
    options: CommandOptions,
) -> None:
    """What is in the tier and what waits to be, whether the store answers, and which deleted topics can be restored."""
    from tidelog.tier import verified  # noqa: PLC0415
    from tidelog.tier.access import ask_brokers, live_topics  # noqa: PLC0415

    with admin_client(options) as client:
        answers = ask_brokers(client)
        live = live_topics(client) if topic is not None else {}
    partitions = [
        _row(broker.broker_id, led)
        for broker in answers.brokers
        for led in broker.partitions
        if topic in (None, led.topic)
    ]
    partitions.sort(key=lambda row: (row["topic"], row["partition"]))
    deleted = _deleted(answers, topic)
    if topic is not None and topic not in live and not partitions and not deleted:
        fail(_unknown(topic))
    report = {
        "store": _store(answers),
        "brokers": [_broker(broker) for broker in answers.brokers],
        "silent_brokers": answers.silent,
        "partitions": partitions,
        "deleted": deleted,
        "verified": _verified(verified.newest(answers.brokers), topic),
    }
    if options.as_json:
        print(json.dumps(report))
        return
    for line in _store_lines(answers) + _verified_lines(verified.newest(answers.brokers), topic):
        print(line)
    hidden = 0
    if topic is None and not internal:
        partitions, hidden = without_internal(partitions, lambda row: str(row["topic"]))
    show(partitions, as_json=False, columns=PARTITION_COLUMNS, empty="no tiered partitions")
    say_hidden(hidden, "partition of an internal topic is", "partitions of internal topics are")
    if deleted:
        print("deleted topics, which `tidelog tier restore` can bring back:")
        show(deleted, as_json=False, columns=["topic", "id", "partitions", "deleted", "gone"])


def ls(
    topic: Annotated[str, typer.Argument(help="Its name; @ID behind it for a deleted one.", metavar="TOPIC[@ID]")],
    partition: Annotated[int | None, typer.Option(min=0, help="This partition alone.")] = None,
    *,
    options: CommandOptions,
) -> None:
    """Every segment that the tier holds of a topic, as `__tier_state` has it."""
    from tidelog.tier.access import ask_brokers, live_topics, read_state, split_name  # noqa: PLC0415
    from tiering.bucket.keys import PartitionPath, TierRoot  # noqa: PLC0415

    name, topic_id = split_name(topic)
    rows: list[dict[str, Any]] = []
    with admin_client(options) as client:
        answers, live = ask_brokers(client), live_topics(client)
        known = live.get(name)
        if known is not None and topic_id in (None, known.topic_id):
            topic_id, wanted = known.topic_id, list(range(known.partitions))
        else:
            topic_id, wanted = _deleted_topic(answers, name, topic_id)
        if partition is not None and partition not in wanted:
            fail(f"{name} has no partition {partition}")
        for index in wanted if partition is None else [partition]:
            state = read_state(client, topic_id, index)
            if isinstance(state, str):
                fail(f"{name}-{index}: {state}")
            root, path = TierRoot(answers.cluster_id), PartitionPath(name, topic_id, index)
            rows += [
                {
                    "partition": index,
                    "base_offset": segment.base_offset,
                    "end_offset": segment.end_offset,
                    "bytes": segment.object_bytes,
                    "records": segment.records,
                    "latest": utc(segment.max_timestamp) if segment.max_timestamp >= 0 else None,
                    "state": str(segment.state),
                    "rewritten": segment.rewritten,
                    "object": root.segment_key(path, segment.id),
                }
                for segment in state.segments
            ]
    show(rows, as_json=options.as_json, columns=SEGMENT_COLUMNS, empty="nothing of it is in the tier")


def _unknown(topic: str) -> str:
    return f"there is no topic {topic}, and none of that name was deleted lately"


def _deleted_topic(answers: Answers, name: str, topic_id: bytes | None) -> tuple[bytes, list[int]]:
    """Id and partitions of a deleted topic; ends the command unless exactly one matches."""
    found: dict[str, list[int]] = {}
    for broker in answers.brokers:
        for dropped in broker.dropped:
            if dropped.topic == name and (topic_id is None or dropped.topic_id == topic_id.hex()):
                found.setdefault(dropped.topic_id, []).append(dropped.partition)
    if not found:
        fail(_unknown(name))
    if len(found) > 1:
        fail(f"several topics {name} were deleted; name one: {', '.join(f'{name}@{one}' for one in found)}")
    ((text, partitions),) = found.items()
    return bytes.fromhex(text), sorted(partitions)


def _row(broker: int, led: LedStatus) -> dict[str, Any]:
    troubles = [led.manifest_trouble or ""]
    if led.unreadable:
        more = f", and {led.unreadable - 1} more" if led.unreadable > 1 else ""
        troubles.append(f"reads fail: {led.read_trouble}{more}")
    if led.failures:
        troubles.append(f"{led.failures} failures in a row")
    troubles.append(led.waits_for or "")
    trouble = "; ".join(filter(None, troubles)) or None
    return {
        "topic": led.topic,
        "topic_id": led.topic_id,
        "partition": led.partition,
        "leader": broker,
        "leader_epoch": led.leader_epoch,
        "log_start": led.log_start_offset,
        "local_start": led.local_log_start_offset,
        "high_watermark": led.high_watermark,
        "log_end": led.log_end_offset,
        "tier_end": led.tier_end_offset,
        "segments": led.segments,
        "tier_bytes": led.tier_bytes,
        "lag_bytes": led.copy_lag_bytes,
        "claimed": led.claimed,
        "copying": led.copying,
        "deleting": led.deleting,
        "manifest_version": led.manifest_version,
        "rewritten": led.rewritten,
        "erased_end": led.erased_end_offset,
        "holds_erased": led.holds_erased,
        "trouble": trouble,
    }


def _store(answers: Answers) -> dict[str, Any] | None:
    store = answers.store
    if store is None:
        return None
    return {
        "uri": store.uri,
        "answers": store.answers,
        "since_ms": store.since_ms,
        "reason": store.reason,
        "incarnation": store.incarnation,
        "stale": store.stale,
    }


def _broker(broker: Any) -> dict[str, Any]:
    store = broker.store
    if store is None:
        return {"broker": broker.broker_id, "tier": False}
    sweep = broker.sweep
    return {
        "broker": broker.broker_id,
        "tier": True,
        "answers": store.answers,
        "since_ms": store.since_ms,
        "reason": store.reason,
        "refused_since_ms": store.refused_since_ms,
        "export_trouble_since_ms": store.export_trouble_since_ms,
        "export_trouble": store.export_trouble,
        "swept": None if sweep is None else {"objects": sweep.objects, "bytes": sweep.bytes, "left": sweep.left},
    }


def _store_lines(answers: Answers) -> list[str]:
    store = answers.store
    if store is None:
        return ["this cluster has no tier: tidelog.tier.uri is not set"]
    lines = [f"store {store.uri}: answers"]
    if not store.answers:
        since = f" since {utc(store.since_ms)}" if store.since_ms else ""
        lines = [f"store {store.uri}: DOES NOT ANSWER{since}: {store.reason}"]
    if store.stale is not None:
        lines.append(f"NOT THIS CLUSTER'S ANY MORE: {store.stale}")
    if answers.silent:
        lines.append(f"brokers that do not answer: {', '.join(map(str, answers.silent))}")
    return lines


def _of_topic(seen: Verifications, topic: str | None) -> list[TopicOutcome]:
    return [one for one in seen.topics if topic in (None, one.topic)]


def _verified(seen: Verifications | None, topic: str | None) -> dict[str, Any]:
    """What is known of verifications, newest first."""
    import msgspec  # noqa: PLC0415

    if seen is None:
        return {"runs": [], "topics": []}
    runs = [{"covered": run.scope} | msgspec.to_builtins(run) for run in seen.runs]
    return {"runs": runs, "topics": msgspec.to_builtins(_of_topic(seen, topic))}


def _verified_lines(seen: Verifications | None, topic: str | None) -> list[str]:
    from tidelog.tier.verified import outcome_text, result_text, runs_to_show  # noqa: PLC0415

    if seen is None:
        return []
    whole: list[tuple[str, Outcome]] = [(run.scope, run) for run in seen.runs if run.is_whole]
    if topic is None:
        shown: list[tuple[str, Outcome]] = [(run.scope, run) for run in runs_to_show(seen)]
    else:
        shown = [(topic, one) for one in _of_topic(seen, topic)] or whole
    return [f"verification of {what}: {outcome_text(one)}: {result_text(one)}" for what, one in shown]


def _deleted(answers: Answers, topic: str | None) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for broker in answers.brokers:
        for one in broker.dropped:
            if topic not in (None, one.topic):
                continue
            row = found.setdefault(
                one.topic_id,
                {
                    "topic": one.topic,
                    "id": one.topic_id,
                    "partitions": 0,
                    "deleted": utc(one.dropped_ms),
                    "gone": utc(one.gone_ms),
                },
            )
            row["partitions"] += 1
            row["gone"] = min(row["gone"], utc(one.gone_ms))
    return sorted(found.values(), key=lambda row: (row["topic"], row["deleted"]))
