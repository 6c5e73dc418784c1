"""A replica that begins where the tier ends: what lies before is in the object store, and what must be known of it
(leader epochs, producers) is put in place as if it had been read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.checkpoint_files import LEADER_EPOCHS, replace_file, write_whole
from storage.log_truncation import Reason, truncate_fully_and_start_at
from storage.producer_snapshot import decode_snapshot
from storage.segment import SNAPSHOT_SUFFIX, file_stem

if TYPE_CHECKING:
    from storage.partition_log import PartitionLog


FROM_TIER = Reason("begins where the tier ends")


def start_at(
    log: PartitionLog,
    offset: int,
    log_start_offset: int,
    epochs: Sequence[tuple[int, int]],
    producer_snapshot: bytes,
) -> None:
    """An empty log that begins and ends at `offset`, with all that is known of [log_start_offset, offset).

    `epochs` are (leader epoch, start offset) in order. Raises ValueError when the snapshot is damaged, and nothing has
    happened; ProtocolError(KAFKA_STORAGE_ERROR) when the disk refuses. Call `make_durable` before anything relies on
    this start after a loss of power.
    """
    decode_snapshot(producer_snapshot)
    truncate_fully_and_start_at(log, offset, FROM_TIER, min(log_start_offset, offset))
    log.log_start_offset = min(log_start_offset, offset)
    for epoch, start_offset in epochs:
        if start_offset < offset:
            log.leader_epochs.assign(epoch, start_offset)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    log.epochs_changed = True
    log.producers.load_snapshot(producer_snapshot, offset, log.context.clock.wall_ms())
    log.write_producer_snapshot(offset)


async def make_durable(log: PartitionLog) -> None:
    """The epochs, the snapshot and the names of the files, on the device. Nothing may be appended meanwhile. Raises
    ProtocolError."""
    disk, health = log.context.disk, log.context.health
    path = file_stem(log.directory, log.log_end_offset) + SNAPSHOT_SUFFIX
    snapshot, epochs = log.producers.snapshot(), log.leader_epochs.encode()

    def write() -> None:
        write_whole(disk, path, snapshot)  # no flush does it: they look at snapshots above the recovery point
        replace_file(disk, log.directory, LEADER_EPOCHS, epochs)

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        health.fail(f"start {log.directory} from the tier: {error}")
        raise health.error() from error
