"""A job beside the cluster, which sees the bucket alone: it leaves batches out of segments and proposes what is left.

Now and then it works from an old manifest, has two proposals for the same segments, or calls it an erasure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from object_store.errors import StoreError
from object_store.store import ObjectStore
from tests.sim.history import History
from tests.tiering.rewriting import Keep, proposal_of, write_rewritten
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import TieredSegment
from tiering.jobs.proposal import submit, wait_for_verdict
from tiering.upkeep.inventory import FoundPartition, find_topics

PAUSE_S = (0.1, 0.5)
VERDICT_S = 2.0
RUN_MAX = 4


class Rewriter:
    def __init__(
        self, rng: random.Random, store: ObjectStore, root: Callable[[], TierRoot], topic: str, history: History
    ) -> None:
        self._rng, self._store, self._root, self._topic, self._history = rng, store, root, topic, history
        self._older: FoundPartition | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            if self._history.all_healed:
                continue
            try:
                await self._work()
            except (StoreError, ValueError) as error:
                self._history.counts[f"rewriter: {type(error).__name__}"] += 1
            except TimeoutError:
                self._history.counts["proposals without a verdict in time"] += 1

    async def _work(self) -> None:
        rng = self._rng
        topics = await find_topics(self._store, self._root(), self._topic)
        found = [one for topic in topics for one in topic.partitions.values() if one.manifest is not None]
        if not found:
            return
        partition, older = rng.choice(found), self._older
        if older is not None and rng.random() < 0.2:
            partition = older
        if rng.random() < 0.5:
            self._older = partition
        segments = partition.manifest.segments if partition.manifest is not None else ()
        if not segments:
            return
        twice = rng.random() < 0.3
        at = rng.randrange(len(segments))
        uuids = [await self._propose(partition, segments[at:][: rng.randint(1, RUN_MAX)]) for _ in range(1 + twice)]
        for uuid in uuids:
            verdict = await wait_for_verdict(self._store, self._root(), uuid, VERDICT_S, 0.05)
            self._history.counts["proposals accepted" if verdict.accepted else "proposals refused"] += 1

    async def _propose(self, partition: FoundPartition, inputs: Sequence[TieredSegment]) -> str:
        """The last batch stays, lest the log end in offsets that nobody can read up to."""
        rng, manifest = self._rng, partition.manifest
        assert manifest is not None
        share, end = rng.choice((0.1, 0.5, 0.9)), inputs[-1].end_offset
        keep: Keep = lambda header: header.next_offset == end or rng.random() >= share  # noqa: E731
        number = rng.getrandbits(127) | 1
        output = await write_rewritten(self._store, self._root(), partition.path, inputs, keep, number)
        erase_end = manifest.head.end_offset if rng.random() < 0.2 else None
        proposal = proposal_of(
            partition.path, inputs, [output], number, erase_end=erase_end, incarnation=manifest.head.incarnation
        )
        await submit(self._store, self._root(), proposal)
        return proposal.uuid
