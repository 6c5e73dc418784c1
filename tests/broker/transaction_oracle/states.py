"""Bringing a transactional id into each state, as clients and a coordinator would.

A transaction stays prepared because one of its partitions, `GONE`, has no leader who could take its marker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from tests.broker.transaction_oracle.client import TIMEOUT_MS, Answer, Client, Known, Pair, Place, Stage

ROTATED = 3
LOOKED_AT, QUIET, PARTITIONS = 0, 1, 2 + 2 * ROTATED
"""Of the topic of each state: one partition is for onlookers, one for batches that nobody refuses, and the others are
in the transactions, or not."""
GONE: Place = ("gone", 0)
SHORT_MS = 300
WAIT_S = 30
POLL_S = 0.01
OLD, NEW = "old", "new"
PROTOCOLS = (OLD, NEW)
USED_EPOCH, NEARLY_LAST_EPOCH = 1, 32_765
"""Of ids that have been used before. Their next producers get an epoch that has two older ones, or the last one."""

UNKNOWN = "unknown"
_PASSING = ("CONCURRENT_TRANSACTIONS", "NOT_ENOUGH_REPLICAS", "COORDINATOR_LOAD_IN_PROGRESS")


class NotMade(Exception):
    """The scene is not what it was to become: something took so long that its transaction timed out."""


@dataclass
class Scene:
    """A transactional id. `held` is in its transaction, `other` is not; `client` is what its producer goes by, until an
    answer to it gets lost; `known` is what the coordinator has."""

    name: str
    held: Place
    other: Place
    client: Pair = field(default_factory=Pair)
    known: Known = field(default_factory=lambda: Known("", Pair()))
    with_offsets: bool = False


Make = Callable[[Stage, Client, Scene], Awaitable[None]]


async def insist(client: Client, ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """As a client does: ask until the transaction before is complete."""
    for _ in range(int(WAIT_S / POLL_S)):
        answer = await ask()
        if answer.code == "NONE":
            return answer
        if answer.code not in _PASSING:
            break
        await client.pause(POLL_S)
    raise NotMade(answer.code)


async def begin(client: Client, scene: Scene, *, timeout_ms: int = TIMEOUT_MS, is_last: bool = False) -> None:
    answer = await insist(client, lambda: client.init(5, scene.name, Pair(), timeout_ms))
    assert answer.pair is not None
    scene.client = answer.pair
    assert scene.client.epoch == 1 + (NEARLY_LAST_EPOCH if is_last else USED_EPOCH), scene


async def unknown(stage: Stage, client: Client, scene: Scene) -> None:
    """Its producer id is another one's."""
    answer = await insist(client, lambda: client.init(5, None, Pair()))
    assert answer.pair is not None
    scene.client = answer.pair.further(USED_EPOCH + 1)


async def empty(stage: Stage, client: Client, scene: Scene, *, is_last: bool = False) -> None:
    await begin(client, scene, is_last=is_last)


async def bumped(stage: Stage, client: Client, scene: Scene) -> None:
    """The client itself asked for a new epoch."""
    await begin(client, scene)
    answer = await insist(client, lambda: client.init(5, scene.name, scene.client))
    assert answer.pair is not None
    scene.client = answer.pair


async def ongoing(
    stage: Stage,
    client: Client,
    scene: Scene,
    *,
    protocol: str,
    is_last: bool = False,
    is_stuck: bool = False,
    timeout_ms: int = TIMEOUT_MS,
) -> None:
    """`is_stuck`: it cannot be completed."""
    await begin(client, scene, is_last=is_last, timeout_ms=timeout_ms)
    name, pair = scene.name, scene.client
    if protocol == OLD:
        await insist(client, lambda: client.add(3, name, pair, scene.held))
    await insist(client, lambda: client.produce(11 if protocol == OLD else 12, name, pair, scene.held, 0))
    if scene.with_offsets and protocol == OLD:
        await insist(client, lambda: client.add_offsets(3, name, pair, name))
    if scene.with_offsets:
        await insist(client, lambda: client.commit_offset(3 if protocol == OLD else 5, name, pair, name, scene.held))
    if is_stuck:
        await insist(client, lambda: client.add(3 if protocol == OLD else 5, name, pair, GONE))


async def ended(
    stage: Stage,
    client: Client,
    scene: Scene,
    *,
    protocol: str,
    commit: bool,
    is_last: bool = False,
    is_stuck: bool = False,
) -> None:
    await ongoing(stage, client, scene, protocol=protocol, is_last=is_last, is_stuck=is_stuck)
    await insist(client, lambda: client.end(4 if protocol == OLD else 5, scene.name, scene.client, commit=commit))
    await _until_ended(client, scene)


async def fenced(
    stage: Stage, client: Client, scene: Scene, *, protocol: str, is_last: bool = False, is_stuck: bool = False
) -> None:
    """Another producer has begun with the same id."""
    await ongoing(stage, client, scene, protocol=protocol, is_last=is_last, is_stuck=is_stuck)
    answer = await client.init(5, scene.name, Pair())
    if answer.code != "CONCURRENT_TRANSACTIONS":
        raise NotMade(answer.code)
    await _until_ended(client, scene)


async def timed_out(stage: Stage, client: Client, scene: Scene, *, protocol: str) -> None:
    await ongoing(stage, client, scene, protocol=protocol, timeout_ms=SHORT_MS)
    await client.pause(SHORT_MS / 1000)
    await _until_ended(client, scene)


async def _until_ended(client: Client, scene: Scene) -> None:
    """What can be written of its end is written."""
    for _ in range(int(WAIT_S / POLL_S)):
        known = await client.describe(scene.name)
        is_stuck = known.is_prepared and GONE in known.partitions
        row = await client.producer(scene.held, scene.client.id)
        if known.state.startswith("Complete") or is_stuck:
            if row is None:
                raise NotMade("timed out before its first record")
            if row.current_txn_start_offset == -1:
                return
        await client.pause(POLL_S)
    raise AssertionError(f"{scene} does not end: {known}, {row}")


def _states() -> dict[str, Make]:
    found: dict[str, Make] = {UNKNOWN: unknown, "Empty": empty, "Empty, asked by its producer": bumped}
    for is_last in (False, True):
        at = ", last epoch" if is_last else ""
        if is_last:
            found[f"Empty{at}"] = partial(empty, is_last=True)
        for protocol in PROTOCOLS:
            of = partial(ongoing, protocol=protocol, is_last=is_last)
            found[f"Ongoing {protocol}{at}"] = of
            for commit, outcome in ((True, "Commit"), (False, "Abort")):
                end = partial(ended, protocol=protocol, commit=commit, is_last=is_last)
                found[f"Prepare{outcome} {protocol}{at}"] = partial(end, is_stuck=True)
                found[f"Complete{outcome} {protocol}{at}"] = end
            fence = partial(fenced, protocol=protocol, is_last=is_last)
            found[f"being fenced {protocol}{at}"] = partial(fence, is_stuck=True)
            found[f"fenced {protocol}{at}"] = fence
            if not is_last:
                found[f"timed out {protocol}"] = partial(timed_out, protocol=protocol)
    return found


STATES = _states()


def is_last(state: str) -> bool:
    return state.endswith("last epoch")


def recorded_as(state: str) -> str:
    """What the coordinator calls it."""
    named = {UNKNOWN: "TRANSACTIONAL_ID_NOT_FOUND", "being fenced": "PrepareAbort"}
    named |= {"fenced": "CompleteAbort", "timed out": "CompleteAbort"}
    return next(
        (title for name, title in named.items() if state.startswith(name)), state.replace(",", " ").split(maxsplit=1)[0]
    )
