"""What clients ask in each state, and how what became of it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tests.broker.transaction_oracle.client import Answer, Client, Pair, Place
from tests.broker.transaction_oracle.states import Scene

SAME, RETRIED, OLDER, NEWER, OTHER, OWN, NONE = (
    "same", "retried", "older", "newer", "another id", "as before", "none",
)  # fmt: skip
EPOCHS = (SAME, RETRIED, OLDER, NEWER, OTHER, OWN)
Ask = Callable[[Client, Scene, Pair], Awaitable[Answer]]


@dataclass(frozen=True)
class Question:
    """`epochs`: with which of the pairs of `pair_of` it is asked. `place` tells the partition that it may change.
    `is_spent`: even a refusal leaves something behind, so that the scene is not asked again. `at_last`: it is asked at
    the last epoch too. `ends`: it may end a transaction, which goes on when it is answered. `is_quiet`: refusals of
    other requests would disturb it."""

    label: str
    ask: Ask
    epochs: tuple[str, ...] = EPOCHS
    place: Callable[[Scene], Place] | None = None
    is_spent: bool = False
    at_last: bool = False
    ends: bool = False
    is_quiet: bool = False


def pair_of(epoch: str, scene: Scene) -> Pair | None:
    """The producer id and epoch of a request; None if there are none such, or another name is theirs too."""
    known = scene.known.pair if scene.known.pair != Pair() else scene.client
    pairs = {
        NONE: Pair(),
        SAME: known,
        RETRIED: known.further(-1),
        OLDER: known.further(-2),
        NEWER: known.further(1),
        OTHER: Pair(known.id + (1 << 40), known.epoch),
    }
    if epoch == OWN:
        return None if scene.client in pairs.values() else scene.client
    pair = pairs[epoch]
    return pair if epoch == NONE or 0 <= pair.epoch < 1 << 15 else None


def held(scene: Scene) -> Place:
    return scene.held


def other(scene: Scene) -> Place:
    return scene.other


PLACES = {"its partition": held, "another partition": other}


# requests --------------------------------------------------------------------------------------------------


async def _init(client: Client, scene: Scene, pair: Pair, *, version: int) -> Answer:
    return await client.init(version, scene.name, pair)


async def _add(
    client: Client, scene: Scene, pair: Pair, *, version: int, place: Callable[[Scene], Place], verify_only: bool
) -> Answer:
    return await client.add(version, scene.name, pair, place(scene), verify_only=verify_only)


async def _add_offsets(client: Client, scene: Scene, pair: Pair, *, version: int) -> Answer:
    return await client.add_offsets(version, scene.name, pair, scene.name)


async def _end(client: Client, scene: Scene, pair: Pair, *, version: int, commit: bool) -> Answer:
    return await client.end(version, scene.name, pair, commit=commit)


async def _commit_offset(client: Client, scene: Scene, pair: Pair, *, version: int, member: str = "") -> Answer:
    return await client.commit_offset(
        version, scene.name, pair, scene.name, scene.held, member=member, generation=3 if member else -1
    )


async def _commit_added_offset(client: Client, scene: Scene, pair: Pair, *, version: int) -> Answer:
    """As older clients do."""
    added = await client.add_offsets(3, scene.name, pair, scene.name)
    if added.code != "NONE":
        return Answer(f"AddOffsetsToTxn {added.code}")
    return await client.commit_offset(version, scene.name, pair, scene.name, scene.held)


async def _produce(
    client: Client,
    scene: Scene,
    pair: Pair,
    *,
    version: int,
    place: Callable[[Scene], Place],
    sequence: int,
    transactional: bool = True,
) -> Answer:
    name = scene.name if transactional else None
    return await client.produce(version, name, pair, place(scene), sequence, transactional=transactional)


async def _mark(client: Client, scene: Scene, pair: Pair, *, version: int, commit: bool, coordinator: int) -> Answer:
    """`coordinator`: how its epoch differs from the one of the marker before."""
    row = await client.producer(scene.held, pair.id)
    epoch = max(row.coordinator_epoch if row else 0, 0) + coordinator
    return await client.write_marker(version, pair, scene.held, commit=commit, coordinator_epoch=epoch)


def _of_coordinators() -> list[Question]:
    found = [
        Question(f"InitProducerId {version}", partial(_init, version=version), epochs, at_last=version == 5, ends=True)
        for version, epochs in ((2, (NONE, RETRIED)), (3, (NONE, RETRIED, OTHER)), (5, (NONE, *EPOCHS)))
    ]
    for version, verify_only in ((1, False), (3, False), (4, True), (5, True), (5, False)):
        for label, place in PLACES.items():
            ask = partial(_add, version=version, place=place, verify_only=verify_only)
            does = "verifies" if verify_only else "adds"
            at_last = place is held and version in (3, 5)
            epochs = EPOCHS if place is held and version in (3, 5) else (SAME, RETRIED)
            found.append(Question(f"AddPartitionsToTxn {version} {does} {label}", ask, epochs, at_last=at_last))
    found += [
        Question(f"AddOffsetsToTxn {version}", partial(_add_offsets, version=version), epochs)
        for version, epochs in ((1, (RETRIED,)), (3, EPOCHS), (4, (SAME,)))
    ]
    for version, epochs in ((1, (SAME, RETRIED)), (4, EPOCHS), (5, EPOCHS)):
        for commit in (True, False):
            ask = partial(_end, version=version, commit=commit)
            label = f"EndTxn {version} {'commit' if commit else 'abort'}"
            found.append(Question(label, ask, epochs, at_last=version > 1, ends=True))
    return found


def _of_partitions() -> list[Question]:
    found = []
    for version in (11, 12):
        for label, place, sequence, epochs in (
            ("its partition", held, 0, EPOCHS),
            ("its partition", held, 1, (SAME, NEWER)),
            ("its partition", held, 5, (SAME, NEWER)),
            ("another partition", other, 0, EPOCHS),
            ("another partition", other, 5, (SAME,)),
        ):
            ask = partial(_produce, version=version, place=place, sequence=sequence)
            at_last = version == 12 and sequence == 0
            name = f"Produce {version} from {sequence} on to {label}"
            found.append(Question(name, ask, epochs, place, is_spent=True, at_last=at_last))
        ask = partial(_produce, version=version, place=held, sequence=1, transactional=False)
        found.append(
            Question(
                f"Produce {version} outside of a transaction", ask, (SAME, NEWER), held, is_spent=True, is_quiet=True
            )
        )
    for commit in (True, False):
        outcome = "commit" if commit else "abort"
        for version, coordinator, epochs in (
            (1, 0, (SAME, RETRIED)), (2, 0, EPOCHS), (1, 1, (SAME,)), (1, -1, (SAME,)),
        ):  # fmt: skip
            of = {0: "", 1: " of a later coordinator", -1: " of an earlier coordinator"}[coordinator]
            ask = partial(_mark, version=version, commit=commit, coordinator=coordinator)
            found.append(Question(f"WriteTxnMarkers {version} {outcome}{of}", ask, epochs, held, is_spent=True))
    return found


def _of_groups() -> list[Question]:
    found = [
        Question(f"TxnOffsetCommit {version}", partial(_commit_offset, version=version), is_spent=True)
        for version in (2, 3, 4, 5)
    ]
    for version in (3, 5):
        ask = partial(_commit_offset, version=version, member="nobody")
        found.append(Question(f"TxnOffsetCommit {version} of no member", ask, (SAME,), is_spent=True))
    for version in (3, 4):
        ask = partial(_commit_added_offset, version=version)
        found.append(Question(f"AddOffsetsToTxn 3, TxnOffsetCommit {version}", ask, (SAME, RETRIED), is_spent=True))
    return found


QUESTIONS = [*_of_coordinators(), *_of_partitions(), *_of_groups()]
