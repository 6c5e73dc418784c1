"""The clients of a run with transactions, and what has to be well when all is healed.

Writers of both protocols write to the input, each id with a second producer now and then, which fences the first.
Copiers, one in the old protocol and one in the new, copy the input to the output. Readers of committed records read
from leaders and from followers; one of them begins again whenever it has come to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

from broker.coordination.transactions import adding, ending, producers, values
from common.errors import ErrorCode
from common.ports import Address, Ports
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.clients import fetch_offsets
from tests.sim.cluster_settings import broker_name
from tests.sim.committed_reader import CommittedReader
from tests.sim.copy_chain import Copier
from tests.sim.history import History, TopicPartition
from tests.sim.passing_topics import PassingTopics
from tests.sim.plan import Plan
from tests.sim.transaction_history import OffsetRead, TransactionHistory
from tests.sim.transaction_watch import TransactionWatch, open_names
from tests.sim.transactional_clients import PROTOCOLS, Protocol, TransactionalProducer, Writer
from tests.sim.world import World
from wire.messages import OffsetCommitRequest

OLD, OLDER, NEW = PROTOCOLS
LIFE_S = (1.0, 5.0)  # of a producer before another one takes its id
READERS = ("leaders", "followers")


class TransactionLoad:
    """One per run."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        history: History,
        told: TransactionHistory,
        watch: TransactionWatch,
        bootstrap: Mapping[int, Address],
    ) -> None:
        self._world, self._plan, self._history, self._told, self._watch = world, plan, history, told, watch
        self._bootstrap = bootstrap
        assert plan.transactions is not None
        self._settings = plan.transactions
        self._names = plan.names
        self._inputs = [(self._names.input, index) for index in range(plan.partitions)]

    def add_nodes(self) -> None:
        self._world.add_node("writers", self._writers)
        self._world.add_node("copiers", self._copiers)
        self._world.add_node("readers", self._readers)
        if self._settings.passing_topics:
            self._world.add_node("passing topics", self._passing_topics)

    @property
    def _writer_ids(self) -> list[str]:
        return [f"{self._names.prefix}{name}" for name in self._settings.writers]

    def _links(self, ports: Ports, name: str) -> ClusterLinks:
        return ClusterLinks(ports, self._bootstrap, self._history, name)

    async def _topics(self, links: ClusterLinks) -> None:
        """Wait for them: then there are brokers enough for the internal topics as well."""
        topics = [self._names.input, self._names.output]
        while not links.topic_ids.keys() >= set(topics):
            await links.pause()
            await links.refresh(topics)

    async def _passing_topics(self, ports: Ports) -> None:
        links = self._links(ports, "passing topics")
        await self._topics(links)
        await PassingTopics(links, self._told, self._names, list(self._bootstrap)).run(ports)

    # writers -----------------------------------------------------------------------------------------------

    async def _writers(self, ports: Ports) -> None:
        await self._topics(self._links(ports, "writers"))
        async with asyncio.TaskGroup() as tasks:
            for name in self._writer_ids:
                tasks.create_task(self._write(ports, name))
            tasks.create_task(self._loose_commits(ports))

    def _protocol(self, ports: Ports, name: str) -> Protocol:
        """An id's producers speak one protocol, or now one and now the other."""
        if name.endswith("mixed"):
            return ports.random.choice(PROTOCOLS)
        return NEW if name.endswith("new") else ports.random.choice((OLD, OLDER))

    def _producer(self, ports: Ports, name: str) -> TransactionalProducer:
        timeout_ms = ports.random.choice((900, 1_500, 3_000))
        return TransactionalProducer(
            self._links(ports, name),
            self._told,
            name,
            self._protocol(ports, name),
            timeout_ms,
            asks_level=self._settings.begins_with is not None,
        )

    async def _write(self, ports: Ports, name: str) -> None:
        """One producer after another; some begin while the one before is still at work."""
        rng, pause_s = ports.random, self._settings.pause_s
        async with asyncio.TaskGroup() as tasks:
            while not self._history.stop_producing:
                writer = Writer(self._producer(ports, name), self._inputs, self._names.loose, pause_s)
                task = tasks.create_task(writer.run())
                await asyncio.wait([task], timeout=rng.uniform(*LIFE_S))
                await asyncio.sleep(0.05)

    async def _loose_commits(self, ports: Ports) -> None:
        """Offsets that are committed outside of transactions, and what is there."""
        links, loose = self._links(ports, "loose"), self._names.loose
        rng = ports.random
        row = OffsetCommitRequest.OffsetCommitRequestTopic
        while True:
            await links.pause(0.2)
            with contextlib.suppress(Unreachable):
                node = await links.coordinator(loose)
                if rng.random() < 0.3 and not self._history.stop_producing:
                    topic, index = rng.choice(self._inputs)
                    item = row.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=rng.randrange(1_000),
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    request = OffsetCommitRequest(
                        group_id=loose,
                        generation_id_or_member_epoch=-1,
                        member_id="",
                        group_instance_id=None,
                        topics=[row(name=topic, partitions=[item])],
                    )
                    await links.call(node, request, 8)
                await self._read_offsets(links, node, loose, stable=rng.random() < 0.5)

    async def _read_offsets(self, links: ClusterLinks, node: int, group: str, *, stable: bool) -> None:
        marks = {key: self._told.mark(group, key) for key in self._inputs}
        fetched = await fetch_offsets(links, node, group, self._inputs, stable=stable)
        if isinstance(fetched, ErrorCode):
            self._history.counts[f"offsets read: {fetched.name}"] += 1
            return
        for key, offset in fetched.items():
            self._told.offset_reads.append(OffsetRead(group, key, offset, marks[key]))

    # copiers and readers -----------------------------------------------------------------------------------

    async def _copiers(self, ports: Ports) -> None:
        await self._topics(self._links(ports, "copiers"))
        async with asyncio.TaskGroup() as tasks:
            for name in (f"{self._names.prefix}{copier}" for copier in self._settings.copiers):
                links = self._links(ports, name)
                new = functools.partial(self._producer, ports, name)
                tasks.create_task(Copier(links, self._told, self._names, self._plan.partitions, new).run())
                await asyncio.sleep(ports.random.uniform(0.1, 0.6))

    async def _readers(self, ports: Ports) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in READERS:
                reader = self.reader(self._links(ports, name), name, "rack-1" if name == "followers" else "")
                tasks.create_task(reader.run())

    def reader(self, links: ClusterLinks, name: str, rack: str = "") -> CommittedReader:
        return CommittedReader(links, self._told, self._plan.topic_partitions, f"reader of {name}", rack)

    # what is well ------------------------------------------------------------------------------------------

    def acknowledged(self) -> list[str]:
        """The ids whose transactions were acknowledged to be committed, in order."""
        return [item.intent.transactional_id for item in self._told.ended if item.commit]

    def since_now(self) -> Callable[[], str]:
        """Tells a writer that has committed nothing since now."""
        since = len(self.acknowledged())

        def not_serving() -> str:
            served = set(self.acknowledged()[since:])
            missing = [name for name in self._writer_ids if name not in served]
            return f"{missing[0]} commits nothing" if missing else ""

        return not_serving

    def unsettled(self, image: MetadataImage) -> str:
        """Until all transactions have ended, everything is shown and everything is copied."""
        if open_ones := open_names(self._watch.decisions.states):
            return f"the transaction of {open_ones[0]} is {self._watch.decisions.states[open_ones[0]].state.title}"
        groups = [(GROUP_TOPIC, index) for index in image.topics.by_name[GROUP_TOPIC].partitions]
        for key in [*self._plan.topic_partitions, *groups]:
            if problem := self._unstable(image, key):
                return problem
        for name in READERS:
            for key in self._plan.topic_partitions:
                at, end = self._history.positions.get((f"reader of {name}", key), 0), self._watch.end(key)
                if at < end:
                    return f"the reader of {name} is at {at} of {end} of {key[0]}-{key[1]}"
        for index, key in enumerate(self._inputs):
            if left := self._watch.copied.left(index, key):
                return f"{left} records of {key[0]}-{key[1]} are not copied"
        self._watch.promises.check_ends()
        return ""

    def _unstable(self, image: MetadataImage, key: TopicPartition) -> str:
        """Whether some replica's last stable offset is below its high watermark."""
        found = image.partition_by_name(*key)
        for broker in () if found is None else found.replicas:
            program = self._world.nodes[broker_name(broker)].program
            replica = None if program is None else program.partitions.get(*key)
            if replica is None:
                return f"broker {broker} has no {key[0]}-{key[1]}"
            if (stable := replica.last_stable_offset) < replica.high_watermark:
                return f"broker {broker}: {key[0]}-{key[1]} is stable up to {stable} of {replica.high_watermark}"
        return ""


@contextlib.contextmanager
def last_epoch(last: int) -> Iterator[None]:
    """Within, a producer id has no epoch above `last` for clients."""
    modules, name, before = (adding, ending, producers, values), "LAST_EPOCH", values.LAST_EPOCH
    for module in modules:
        setattr(module, name, last)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, before)
