"""A consumer that reads committed records, as Apache Kafka's does by what the answers list as aborted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from records.batch import iterate_batches
from records.record import decode_records
from tests.sim.client_links import ClusterLinks
from tests.sim.clients import FETCH_WAIT_MS, Consumer
from tests.sim.history import Shown, TopicPartition
from tests.sim.transaction_history import StableRead, TransactionHistory

INFLATED_BYTES_MAX = 1 << 20


class CommittedReader(Consumer):
    """A consumer with `isolation.level=read_committed`: it leaves out what the answers call aborted."""

    def __init__(
        self,
        links: ClusterLinks,
        told: TransactionHistory,
        partitions: Sequence[TopicPartition],
        name: str,
        rack: str = "",
        wait_ms: int = FETCH_WAIT_MS,
    ) -> None:
        super().__init__(links, partitions, name, rack, isolation=1, wait_ms=wait_ms)
        self._told = told

    def show(self, partition: TopicPartition, offset: int, answer: Any, node: int) -> int:
        return self.read(partition, offset, answer, node)[0]

    def read(self, partition: TopicPartition, offset: int, answer: Any, node: int) -> tuple[int, list[bytes]]:
        """The offset behind what came, and the batches that the application is shown."""
        records, begin = answer.records, offset
        if not records:
            return offset, []
        aborted = deque(sorted((row.first_offset, row.producer_id) for row in answer.aborted_transactions or ()))
        left_out = set[int]()
        shown, batches, history = list[int](), list[bytes](), self._links.history
        with memoryview(records) as view:
            for at, header in iterate_batches(view, 0, len(view)):
                if header.next_offset <= offset:
                    continue
                if header.base_offset > offset:
                    history.impossible.append(f"{partition}: offset {offset} is missing before {header.base_offset}")
                while aborted and aborted[0][0] <= header.base_offset:
                    left_out.add(aborted.popleft()[1])
                if header.is_control:
                    left_out.discard(header.producer_id)  # an abort; a commit has nothing to discard
                elif header.producer_id not in left_out or not header.is_transactional:
                    shown.append(header.base_offset)
                    batches.append(bytes(view[at : at + header.size]))
                history.shown.append(Shown(partition, header.base_offset, header.next_offset, header.crc, node))
                offset = header.next_offset
        self._told.reads.append(StableRead(self._name, node, partition, begin, offset, tuple(shown)))
        return offset, batches


def values_of(batch: bytes) -> list[tuple[int, bytes]]:
    """Offset and value of each record."""
    with memoryview(batch) as view:
        records = decode_records(view, 0, len(view), inflated_bytes_max=INFLATED_BYTES_MAX)
    return [(record.offset, bytes(record.value or b"")) for record in records]
