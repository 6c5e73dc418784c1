"""What is there when the questions are asked: topics, a group's offsets, and the principals' ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from common.errors import ErrorCode
from tests.broker.gate_oracle.questions import metadata
from tests.broker.gate_oracle.rights import ALL, RIGHTS, bindings
from tests.broker.gate_oracle.things import (
    COMMITTED,
    DOOMED,
    GROUP,
    HIDDEN,
    HIDDEN_GROUP,
    NAMED,
    THERE,
    TRANSACTION,
    Ids,
    message,
)
from tests.broker.tenant_lab import Wire

SETTLING_S = 60


async def furnish(anonymous: Wire, login: Callable[[str], Awaitable[Wire]]) -> Ids:
    """Make it, and wait until it holds. `anonymous` is a super user."""
    ids = Ids({})
    await create(anonymous, ids, (THERE, DOOMED, HIDDEN))
    for group in (GROUP, HIDDEN_GROUP):
        await _commit(anonymous, group)
    made = await anonymous.call(_acls(), 3)
    assert not any(result.error_code for result in made.results), made
    await _until(lambda: _has_rights(login))
    await _until(lambda: _has_producer_ids(anonymous))
    await _until(lambda: _has_transaction(anonymous))
    return ids


def _acls() -> Any:
    return type(message("CreateAcls"))(creations=bindings())


async def create(wire: Wire, ids: Ids, names: tuple[str, ...]) -> None:
    row = {"num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    rows = [row | {"name": name} for name in names]

    async def done() -> bool:
        made = await wire.call(message("CreateTopics", topics=rows, timeout_ms=5_000, validate_only=False), 7)
        ids.topics.update({topic.name: topic.topic_id for topic in made.topics if not topic.error_code})
        return all(topic.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS) for topic in made.topics)

    async def led() -> bool:
        answer = await wire.call(metadata(ids, 12, topics=[{"name": name} for name in names]), 12)
        led_by = [one.leader_id for topic in answer.topics for one in topic.partitions]
        known = all(topic.topic_id == ids.of(topic.name) for topic in answer.topics)
        return known and len(led_by) == 2 * len(names) and min(led_by) >= 0

    await _until(done)
    await _until(led)


async def _commit(wire: Wire, group: str) -> None:
    partition = {
        "partition_index": 0, "committed_offset": COMMITTED, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    rows = [{"name": name, "partitions": [partition]} for name in NAMED if name in (THERE, HIDDEN)]

    async def done() -> bool:
        await wire.call(message("FindCoordinator", key=group, key_type=0, coordinator_keys=[group]), 4)
        answer = await wire.call(
            message("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, member_id="",
                    group_instance_id=None, topics=rows), 8,
        )  # fmt: skip
        return not any(one.error_code for topic in answer.topics for one in topic.partitions)

    await _until(done)


async def _has_rights(login: Callable[[str], Awaitable[Wire]]) -> bool:
    """The first and the last principal that has any have them."""
    for right in (ALL, RIGHTS[-1]):
        wire = await login(right)
        answer = await wire.call(message("OffsetFetch", groups=[{"group_id": GROUP, "topics": None}]), 8)
        wire.close()
        if answer.groups[0].error_code or not answer.groups[0].topics:
            return False
    return True


async def _has_producer_ids(anonymous: Wire) -> bool:
    answer = await anonymous.call(message("InitProducerId", transactional_id=None, transaction_timeout_ms=1_000), 1)
    return not answer.error_code


async def _has_transaction(anonymous: Wire) -> bool:
    await anonymous.call(message("FindCoordinator", key=TRANSACTION, key_type=1, coordinator_keys=[TRANSACTION]), 4)
    asked = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 1_000, "producer_id": -1, "producer_epoch": -1}
    answer = await anonymous.call(message("InitProducerId", **asked), 4)
    return not answer.error_code


async def _until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SETTLING_S):
        while not await done():  # noqa: ASYNC110  another process has no event for it
            await asyncio.sleep(0.05)


def restorer(wire: Wire, ids: Ids) -> Callable[[], Awaitable[None]]:
    """Makes the topics that a question may have deleted."""

    async def restore() -> None:
        await create(wire, ids, (DOOMED, HIDDEN))

    return restore
