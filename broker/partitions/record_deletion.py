"""DeleteRecords on the leader: where a partition's log is to start."""

from __future__ import annotations

from msgspec import Struct

from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError

DELETE_RECORDS = "DeleteRecords"  # cause of the truncation in the audit


class RecordDeletion(Struct, frozen=True):
    """Created per request."""

    partition: Partition

    def new_log_start(self, offset: int) -> int:
        """The log start that DeleteRecords up to `offset` (-1: the high watermark) asks for.

        Raises ProtocolError: NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION if the topic is only compacted,
        OFFSET_OUT_OF_RANGE above the high watermark.
        """
        partition = self.partition
        if partition.replica_set is None:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not partition.log.config.deletes:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION)
        target = partition.high_watermark if offset == -1 else offset
        if not 0 <= target <= partition.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return target

    def delete(self, offset: int, actor: str = "") -> None:
        """Move the log start to `offset`; followers learn of it in their next response. Raises AuditPending, and the
        errors of `new_log_start`. Not for tiered partitions, where the tier moves the log start."""
        if self.partition.log.advance_log_start(self.new_log_start(offset), DELETE_RECORDS, actor):
            self.partition.log_start_moved()
