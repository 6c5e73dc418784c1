"""Everything of every log on the device, as a clean stop leaves it."""

import asyncio
from collections.abc import Iterator, Sequence

from common.ports import Disk
from storage.log_flusher import FlushDepth, FlushJob
from storage.partition_log import PartitionLog
from storage.segment import SNAPSHOT_SUFFIX, file_stem

CHUNK_LOGS = 64
THREADS = 4  # the device merges what they wait for


async def flush_completely(disk: Disk, logs: Sequence[PartitionLog]) -> None:
    """Write and flush `logs` to their ends, a few threads at a time. Raises OSError and ProtocolError."""
    lacking = {log: None for log in logs if _lacks_snapshot(log)}
    for log in lacking:
        log.write_producer_snapshot(log.log_end_offset)
    for log in lacking:  # of many producers it comes later, and asks for a flush of its own
        await log.context.snapshots.idle()
        await log.context.flusher.idle()
    planned = [(log, job) for log in logs if (job := _plan_complete(log, is_new=log in lacking)) is not None]
    chunks = iter([planned[at : at + CHUNK_LOGS] for at in range(0, len(planned), CHUNK_LOGS)])

    async def work(remaining: Iterator[list[tuple[PartitionLog, FlushJob]]]) -> None:
        for chunk in remaining:
            await asyncio.to_thread(_run_jobs, disk, [job for _, job in chunk])
            for log, job in chunk:
                log.flush_finished(job)

    await asyncio.gather(*[asyncio.create_task(work(chunks)) for _ in range(THREADS)])


def _run_jobs(disk: Disk, jobs: list[FlushJob]) -> None:
    synced: set[str] = set()
    for job in jobs:
        job.run(disk, synced)


def _lacks_snapshot(log: PartitionLog) -> bool:
    """Whether there is none at the log's end, although there are producers, or were."""
    is_known = log.barred is None and bool(len(log.producers) or log.snapshots)
    return is_known and log.log_end_offset not in log.snapshots


def _plan_complete(log: PartitionLog, *, is_new: bool) -> FlushJob | None:
    """`is_new`: the producer snapshot at the log's end was just written."""
    end_offset = log.log_end_offset
    job = log.plan_flush(FlushDepth.COMPLETE)
    if is_new:
        job = job or FlushJob(log.directory, log.generation, end_offset, log.recovery_point)
        path = file_stem(log.directory, end_offset) + SNAPSHOT_SUFFIX
        if path not in job.paths:
            job.paths.append(path)
        if log.directory not in job.directories:
            job.directories.append(log.directory)
    return job
