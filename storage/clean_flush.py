"""Everything of every log on the device, as a clean stop leaves it."""

import asyncio
from collections.abc import Iterator, Sequence

from common.pacing import Pacer
from common.ports import Disk
from storage.log_flusher import FlushDepth, FlushJob
from storage.partition_log import PartitionLog
from storage.segment import SNAPSHOT_SUFFIX, file_stem

CHUNK_LOGS = 64
THREADS = 4  # the device merges what they wait for


async def flush_completely(disk: Disk, logs: Sequence[PartitionLog], pacer: Pacer) -> None:
    """Write and flush `logs` to their ends, a few threads at a time. Nothing is appended meanwhile. Raises OSError and
    ProtocolError."""
    lacking: dict[PartitionLog, None] = {}
    for at in range(0, len(logs), CHUNK_LOGS):
        for log in logs[at : at + CHUNK_LOGS]:
            if _lacks_snapshot(log):
                lacking[log] = None
                log.write_producer_snapshot(log.log_end_offset)
        await pacer.rest("clean-stop")
    if lacking:  # of many producers it comes later, and asks for a flush of its own
        await logs[0].context.snapshots.idle()
        await logs[0].context.flusher.idle()
    starts = iter(range(0, len(logs), CHUNK_LOGS))

    async def work(remaining: Iterator[int]) -> None:
        for at in remaining:
            planned = [(log, _plan_complete(log, is_new=log in lacking)) for log in logs[at : at + CHUNK_LOGS]]
            chunk = [(log, job) for log, job in planned if job is not None]
            if chunk:
                await asyncio.to_thread(_run_jobs, disk, [job for _, job in chunk])
            await pacer.rest("clean-stop")
            for log, job in chunk:
                log.flush_finished(job)

    await asyncio.gather(*[asyncio.create_task(work(starts)) for _ in range(THREADS)])


def _run_jobs(disk: Disk, jobs: list[FlushJob]) -> None:
    synced: set[str] = set()
    for job in jobs:
        job.run(disk, synced)


def _lacks_snapshot(log: PartitionLog) -> bool:
    """Whether there is none at the log's end, although there are producers, or were."""
    is_known = log.barred is None and bool(len(log.producers) or log.producer_history.snapshots)
    return is_known and log.log_end_offset not in log.producer_history.snapshots


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
