"""What holds no records is refused by a partition, at once and where the append comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from records.batch import HEADER_BYTES, read_header, seal
from tests.broker.replication_lab import Lab, batch

pytestmark = pytest.mark.virtual_time


def garbage() -> bytearray:
    """A batch with a right CRC whose records are not records."""
    spoiled = bytearray(batch(b"value" * 20))
    spoiled[HEADER_BYTES:] = b"\xff" * (len(spoiled) - HEADER_BYTES)
    seal(spoiled, 0, len(spoiled))
    return spoiled


async def test_a_batch_without_records_is_refused_and_the_log_stays_as_it_was(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), min_insync_replicas="1")
        partition: Partition = lab[0].partition
        spoiled = garbage()
        now_ms = read_header(spoiled, 0).max_timestamp
        with memoryview(spoiled) as view:
            with pytest.raises(ProtocolError) as at_once:
                partition.append_produced(spoiled, view, 0, len(spoiled), 1, now_ms)
            with pytest.raises(ProtocolError) as later:
                partition.check_batch(view, 0, len(spoiled), now_ms)
        assert (at_once.value.code, later.value.code) == (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD)
        assert partition.log.log_end_offset == 0
