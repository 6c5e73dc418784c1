"""Asking every question as every principal, and what of an answer two systems have in common.

Kept are names, error codes, operations and the shape; numbers that are not -1, hosts, ids and texts are only there or
not. What a table of answers looks like in a file: `write` and `read`.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from common.errors import known_error
from tests.broker.gate_oracle.questions import Question
from tests.broker.gate_oracle.rights import RIGHTS
from tests.broker.gate_oracle.things import ABSENT, DOOMED, HIDDEN, HIDDEN_GROUP, THERE, Ids
from tests.broker.gate_oracle.things import GROUP as GROUP_THERE
from tests.broker.tenant_lab import Wire
from wire.codec import decode_response

Answers = dict[tuple[str, str, int], dict[str, str]]
"""By API, label and version: the answer for each right."""

CLOSED = "closed"
OTHERS = "*"  # in a file: all rights that are not in another line
EXACT = frozenset({
    "authorized_operations", "topic_authorized_operations", "resource_type",
    "partition_index", "partition", "index", "is_internal", "num_partitions", "replication_factor", "committed_offset",
})  # fmt: skip
DROPPED = frozenset({
    "throttle_time_ms", "error_message", "api_keys", "supported_features", "finalized_features",
    "finalized_features_epoch", "zk_migration_ready", "brokers", "cluster_id", "controller_id", "node_endpoints",
    "configs", "aborted_transactions", "total_bytes", "usable_bytes", "group_state", "protocol_type", "protocol_data",
    "protocol_name", "group_type",
})  # fmt: skip
_KNOWN = (THERE, DOOMED, HIDDEN, GROUP_THERE, HIDDEN_GROUP)
_MADE = re.compile(rf"{ABSENT}-\d+")


def essence(key: int, version: int, payload: bytes | None, ids: Ids) -> str:
    """The answer as one line of JSON."""
    if payload is None:
        return CLOSED
    answer = decode_response(key, version, payload)[1].to_dict()
    return compact(_walk(answer, "", ids))


def compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _walk(value: Any, name: str, ids: Ids) -> Any:
    if isinstance(value, Mapping):
        return {key: _walk(one, key, ids) for key, one in value.items() if key not in DROPPED}
    if isinstance(value, list | tuple | set):
        rows = [_walk(one, name, ids) for one in value]
        rows = [row for row in rows if not (isinstance(row, dict) and _strange(row, ids))]
        return sorted(rows, key=compact)
    if name == "client_instance_id":
        return "none" if value is None else "an id"
    if isinstance(value, uuid.UUID) or name == "topic_id":
        known = {str(topic_id): name for name, topic_id in ids.topics.items()}
        return known.get(str(value), "none" if value is None or not uuid.UUID(str(value)).int else "no such id")
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes" if len(value) else "none"
    if name.endswith("error_code"):
        return known_error(value).name
    if name == "records":
        return "bytes" if value else "none"
    if name in EXACT or isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return -1 if value == -1 else "number"
    if name in (
        "host",
        "log_dir",
        "metadata",
        "committed_metadata",
        "principal_name",
        "token_requester_principal_name",
    ):
        return "text" if value else ""
    return ABSENT if value == f"{ABSENT}-{ids.serial}" else value


def _strange(row: dict[str, Any], ids: Ids) -> bool:
    """A topic that another question has made, or an internal one, of which each system has its own."""
    resource = str(row.get("resource_name"))
    return bool(_MADE.fullmatch(str(row.get("name"))) or _MADE.fullmatch(resource)) or resource.startswith("__")


async def ask_all(
    questions: list[Question],
    connect: Callable[[str], Awaitable[Wire]],
    ids: Ids,
    restore: Callable[[], Awaitable[None]],
    wires: dict[str, Wire],
) -> Answers:
    """`connect` logs in as who has a right, and `wires` holds who is; `restore` makes `DOOMED` anew if it is gone."""
    found: Answers = {}

    async def ask(question: Question, version: int, right: str) -> None:
        message = question.build(ids, version)
        wire = wires.get(right)
        if wire is None:
            wire = wires[right] = await connect(right)
        payload = await wire.exchange(message, version)
        if payload is None:
            del wires[right]
        found[question.api, question.label, version][right] = essence(message.API_KEY, version, payload, ids)
        if question.undo:
            await restore()

    for question in questions:
        ids.serial += 1  # what an earlier question made is strange to this one
        for version in question.versions:
            found[question.api, question.label, version] = {}
            if question.undo or question.alone:
                for right in RIGHTS:
                    await ask(question, version, right)
            else:
                await asyncio.gather(*(ask(question, version, right) for right in RIGHTS))
    return found


def write(answers: Answers, path: Path) -> None:
    """One line for each answer of a question: versions, rights, answer; versions with equal answers together."""
    lines: list[str] = []
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for (api, label, version), by_right in answers.items():
        by_answer: dict[str, list[str]] = {}
        for right in RIGHTS:
            by_answer.setdefault(by_right[right], []).append(right)
        most = max(by_answer.values(), key=len)
        text = "".join(
            f"\t{OTHERS if rights is most else ' '.join(rights)}\t{answer}\n" for answer, rights in by_answer.items()
        )
        groups.setdefault((api, label), {}).setdefault(text, []).append(version)
    for (api, label), by_text in groups.items():
        for text, versions in by_text.items():
            lines.append(f"{api}\t{label}\t{' '.join(map(str, versions))}\n{text}")
    path.write_text("".join(lines))


def read(path: Path) -> Answers:
    found: Answers = {}
    keys: list[tuple[str, str, int]] = []
    for line in path.read_text().splitlines():
        if not line.startswith("\t"):
            api, label, versions = line.split("\t")
            keys = [(api, label, int(version)) for version in versions.split()]
            found.update((key, {}) for key in keys)
        else:
            _, rights, answer = line.split("\t")
            for key in keys:
                found[key].update(dict.fromkeys(rights.split(), answer))
    for by_right in found.values():
        rest = by_right.pop(OTHERS)
        by_right.update({right: rest for right in RIGHTS if right not in by_right})
    return found
