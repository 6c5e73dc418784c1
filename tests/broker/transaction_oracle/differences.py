"""Where this cluster is known to answer other than Apache Kafka, and why.

`python -m tests.broker.transaction_oracle.differences` asks a cluster of ours and writes those of its answers that
differ to `differences.txt`; what stands there is to be explained below. `--table` prints docs/transactions.md's table.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tests.broker.transaction_oracle.asking import Answers, Key, ask_all, read, write
from tests.broker.transaction_oracle.node import Cluster
from tests.virtual_time import VirtualLoop

KAFKAS = Path(__file__).parent / "answers.txt"
OURS = Path(__file__).parent / "differences.txt"
STATES_AT_ONCE = 4  # more would run into the simulator's limit of callbacks in a second
HEAD = ("state", "request", "Apache Kafka 4.2.0", "Tidelog", "why")
FENCED_AT_LAST = ("fenced old, last epoch", "fenced new, last epoch")
ONGOING_AT_LAST = ("Ongoing old, last epoch", "Ongoing new, last epoch")


@dataclass(frozen=True)
class Reason:
    """`example`: a question, its epoch and a state."""

    example: tuple[str, str, str]
    why: str
    covers: Callable[[Key, str], bool]


def _is_aborted(state: str) -> bool:
    return state.startswith(("CompleteAbort", "fenced", "timed out")) and state not in FENCED_AT_LAST


REASONS = (
    Reason(
        ("EndTxn 5 abort", "same", "fenced new, last epoch"),
        "A fence uses the last epoch up, so the next producer id is drawn with it. Apache Kafka draws it when a "
        "producer begins again; until then the id has an epoch that cannot be raised",
        lambda key, state: state in FENCED_AT_LAST or (state in ONGOING_AT_LAST and key[0] == "InitProducerId 5"),
    ),
    Reason(
        ("InitProducerId 5", "retried", "Empty, last epoch"),
        "Apache Kafka fails to compare the epochs there",
        lambda key, state: key[0] == "InitProducerId 5" and state not in FENCED_AT_LAST + ONGOING_AT_LAST,
    ),
    Reason(
        ("EndTxn 5 commit", "retried", "CompleteAbort new"),
        "The coordinator had aborted the transaction. Clients go on after PRODUCER_FENCED, and the other code ends "
        "them; later versions of Apache Kafka answer it too (KAFKA-20785)",
        lambda key, state: key[0] == "EndTxn 5 commit" and _is_aborted(state) and " new" in state,
    ),
    Reason(
        ("EndTxn 5 abort", "retried", "CompleteAbort old"),
        "The last transaction was one of the older protocol, in which the epoch belongs to a later producer: one that "
        "it has fenced must not get it",
        lambda key, state: key[0].startswith("EndTxn 5") and " old" in state and state not in FENCED_AT_LAST,
    ),
)


def expected() -> Answers:
    """What is to be answered: as Apache Kafka does, but for the differences."""
    found = read(KAFKAS)
    for key, by_state in read(OURS).items():
        found.setdefault(key, {}).update(by_state)
    return found


def differing(ours: Answers) -> Answers:
    """Of our answers, those that Apache Kafka does not give to the same question. It may have had none to ask: where it
    has another producer id, other epochs are lower than that one's."""
    found: Answers = {}
    kafkas = read(KAFKAS)
    for key, by_state in ours.items():
        differ = {state: told for state, told in by_state.items() if kafkas.get(key, {}).get(state) != told}
        if differ:
            found[key] = differ
    return found


def markdown() -> str:
    kafkas, ours = read(KAFKAS), read(OURS)
    lines = [HEAD, tuple("---" for _ in HEAD)]
    for reason in REASONS:
        label, epoch, state = reason.example
        answers = (answer[label, epoch][state] for answer in (kafkas, ours))
        lines.append((state, f"{label}, {epoch} epoch", *answers, reason.why))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


async def ask_ours(root: Path) -> Answers:
    async with Cluster(root) as cluster:
        return await ask_all(await cluster.furnish(), at_once=STATES_AT_ONCE)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-transactions-") as root,
        asyncio.Runner(loop_factory=cast(Callable[[], asyncio.AbstractEventLoop], VirtualLoop)) as runner,
    ):
        write(differing(runner.run(ask_ours(Path(root)))), OURS)


if __name__ == "__main__":
    if "--table" in sys.argv:
        print(markdown(), end="")
    else:
        main()
