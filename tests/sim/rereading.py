"""A reader with a history of its own: of a topic that came back from the tier, whose records another run, or another
name, has seen committed."""

from __future__ import annotations

from tests.sim.client_links import ClusterLinks
from tests.sim.historian import Historian
from tests.sim.history import History, TopicPartition
from tests.sim.invariants import CommittedLog
from tests.sim.plan import TOPIC
from tiering.upkeep.inventory import FoundTopic


class Rereader:
    """Reads `topic`, of which the tier held what `found` says, again and again."""

    def __init__(self, topic: str, found: FoundTopic) -> None:
        self.history = History()
        self._found = found
        self._partitions: list[TopicPartition] = [(topic, index) for index in found.partitions]

    async def run(self, links: ClusterLinks) -> None:
        """`links` with this reader's history."""
        await Historian(links, self._partitions).run()

    def unread(self) -> str:
        """Until all that the tier held was read in one go."""
        for partition in self._partitions:
            wanted = self._found.partitions[partition[1]]
            read = self.history.passes.get(partition)
            if read is None or (read.begin, read.end) != (wanted.log_start_offset, wanted.end_offset):
                return f"{partition[0]}-{partition[1]} is not read from {wanted.log_start_offset}: {read}"
        return ""

    def check(self, committed: CommittedLog) -> int:
        """How many batches were compared with what was committed."""
        assert not self.history.impossible
        for shown in self.history.shown:
            batch = committed.at((TOPIC, shown.partition[1]), shown.base_offset)
            assert batch is not None
            assert batch.crc == shown.crc
        return len(self.history.shown)
