"""What a job would write: segments with some of the batches of others, in the store, and the proposal for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.checksum import crc32c
from object_store.store import ObjectStore
from records.batch import BatchHeader, iterate_batches
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import LEADER_EPOCHS, PRODUCER_SNAPSHOT, TRANSACTION_INDEX, TieredSegment
from tiering.jobs.proposal import Proposal
from tiering.jobs.segment_writer import SegmentWriter

Keep = Callable[[BatchHeader], bool]


def every(number: int, kept: int = 0) -> Keep:
    """Of the offsets modulo `number`, batches that begin at `kept`."""
    return lambda header: header.base_offset % number == kept


async def write_rewritten(
    store: ObjectStore,
    root: TierRoot,
    path: PartitionPath,
    inputs: Sequence[TieredSegment],
    keep: Keep,
    number: int,
    *,
    transactions: bool = True,
    index_interval_bytes: int = 256,
) -> TieredSegment:
    """One output for all inputs, its object in the store. Where nothing is kept the last batch is."""
    writer = SegmentWriter(inputs[0].base_offset, index_interval_bytes)
    log, taken_over, aborted, last = bytearray(), dict[str, bytes](), b"", b""
    for segment in inputs:
        data = await store.get(root.segment_key(path, segment.id))
        if len(data) != segment.object_bytes or crc32c(data[: segment.log_bytes]) != segment.log_crc32c:
            raise ValueError(f"the object of {segment.id} is damaged")
        if any(crc32c(data[one.position :][: one.length]) != one.crc32c for one in segment.sections.values()):
            raise ValueError(f"a section of {segment.id} is damaged")
        for at, header in iterate_batches(memoryview(data), 0, segment.log_bytes, verify_crc=True):
            last = data[at : at + header.size]
            if keep(header):
                writer.append(last)
                log += last
        sections = {name: data[one.position : one.position + one.length] for name, one in segment.sections.items()}
        taken_over = {name: sections[name] for name in (PRODUCER_SNAPSHOT, LEADER_EPOCHS) if name in sections}
        aborted += sections.get(TRANSACTION_INDEX, b"") if transactions else b""
    if not log:
        writer.append(last)
        log += last
    made, tail = writer.finish(f"{number:032x}", inputs, taken_over, aborted, 1_000)
    await store.put(root.segment_key(path, made.id), [bytes(log), *tail])
    return made


def proposal_of(
    path: PartitionPath,
    inputs: Sequence[TieredSegment],
    outputs: Sequence[TieredSegment],
    number: int,
    *,
    erase_end: int | None = None,
    incarnation: int = 1,
    reaches_log_start: bool = False,
) -> Proposal:
    return Proposal(
        uuid=f"{number:032x}",
        kind="compaction" if erase_end is None else "erasure",
        topic=path.topic,
        topic_id=path.topic_id.hex(),
        tenant=path.tenant,
        partition=path.partition,
        created_ms=1_000,
        job="a test",
        incarnation=incarnation,
        log_start_offset=0,
        reaches_log_start=reaches_log_start,
        inputs=[segment.id for segment in inputs],
        outputs=list(outputs),
        erase_end=erase_end,
    )
