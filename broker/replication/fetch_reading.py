"""Turns one position of a fetch into one row of the response: records, or an error.

There are three kinds of readers: a follower in its leader's epoch, a consumer at the leader, a consumer at a follower.
Every failure is an error in the row, never an exception.

A follower serves only consumers that a leader may have redirected (KIP-392). Any other consumer still takes this broker
for the leader that it was (clients from before KIP-320 send no epoch) and gets NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from itertools import count

import msgspec
from msgspec.structs import replace

from broker.partitions.hosted import HostedPartitions
from broker.partitions.leader_hints import LeaderHints
from broker.partitions.partition import Partition
from broker.partitions.replica import OFFLINE
from broker.replication.cold_reading import ColdReading
from broker.replication.fetch_sessions import BY_ID_FROM, FetchSession, Position
from broker.replication.preferred_replica import Doubts, ReadableReplica, Redirections, preferred_replica
from broker.security.session import ClientSession
from common.errors import ErrorCode, ProtocolError
from kraft.records import AclOperation, AclResource
from storage.disk.cold_reads import PagesMissing, PageWait
from storage.log.partition_log import PartitionLog
from storage.segments.region import Region
from tiering.reading.downloads import Ticket
from wire.hot_codec import NO_TIER_END, FetchCall, FetchedRow, LeaderHint

READ_COMMITTED = 1
READ_FROM_FOLLOWERS_FROM = 11
NO_REPLICA = -1
CONSUMER = -1
NO_ERROR = int(ErrorCode.NONE)
_READ, _TOPIC = int(AclOperation.READ), int(AclResource.TOPIC)
_NEEDS_HINT = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class Read(msgspec.Struct, frozen=True, gc=False):
    """`row` has `size` bytes of records. `urgent`: the row ends the fetch's wait at once. `more`: there is something to
    read, even if it is not in the row. `is_cold`: the data is in the tier or not in the page cache; the row has no
    records yet, or an error that may be sent later; `ticket` is the download or disk read to wait for. `counts_for` is
    the partition that counts the records of a consumer once they are sent."""

    row: FetchedRow
    size: int
    urgent: bool
    more: bool
    is_cold: bool = False
    ticket: Ticket | PageWait | None = None
    counts_for: Partition | None = None


class FetchReader:
    """Reads positions for a broker."""

    def __init__(self, hosted: HostedPartitions, hints: LeaderHints, rack_aware: bool) -> None:
        self._hosted = hosted
        self._hints = hints
        self._rack_aware = rack_aware
        self._redirections = Redirections()
        self._doubts = Doubts()
        self._readers = count(1)
        self.cold: ColdReading | None = None
        self._quota = hosted.throttles.leader

    def read_tier_through(self, cold: ColdReading) -> None:
        """Set the tier's reader. Called once, because a broker opens its tier long after its connections."""
        self.cold = cold

    def find(self, position: Position, version: int, client: ClientSession) -> Partition | None:
        """The position's partition, looked up again unless it is hosted here. A tenant finds only its own
        partitions."""
        partition = position.partition
        if partition is None or partition.role is OFFLINE:
            topics = self._hosted.by_id if version >= BY_ID_FROM else self._hosted.by_name
            hosted = topics.get(position.topic)
            partition = hosted.get(position.index) if hosted is not None else None
            if partition is not None and (
                partition.role is OFFLINE or not partition.name.startswith(client.topic_prefix)
            ):
                partition = None
        return partition

    def read(
        self,
        position: Position,
        call: FetchCall,
        version: int,
        bytes_left: int,
        at_least_one: bool,
        client: ClientSession,
    ) -> Read:
        """The row for `position`, with at most `bytes_left` bytes of records, or one larger batch if `at_least_one`."""
        partition = self.find(position, version, client)
        try:
            if client.access is not None:
                self._authorize(client, position, partition, version)
            if partition is None:
                raise ProtocolError(self._missing(position, version, client))
            partition.check_epoch(position.leader_epoch)
            if call.replica >= 0:
                return self._read_as_replica(call, position, partition, bytes_left, at_least_one)
            return self._read_as_consumer(position, partition, call, version, bytes_left, at_least_one, client)
        except PagesMissing as missing:
            if partition is None:
                raise
            return self._waiting(position, partition, call, missing.wait)
        except ProtocolError as error:
            code = error.code
            if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._is_doubtful(position, partition, call, client):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return self._failed(position, partition, call, version, code)

    def _authorize(self, client: ClientSession, position: Position, partition: Partition | None, version: int) -> None:
        """Raises TOPIC_AUTHORIZATION_FAILED for existing and missing topics alike; unknown topic ids get their own
        error."""
        name: str | None
        if partition is not None:
            name = partition.topic
        elif version >= BY_ID_FROM:
            topic = self._hosted.image.topics.get_by_id(position.topic)
            is_own = topic is not None and topic.name.encode().startswith(client.topic_prefix)
            name = topic.name if topic is not None and is_own else None
        else:
            name = position.topic.decode(errors="replace")
        if name is not None and client.access is not None and not client.access.may(_READ, _TOPIC, name):
            raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def acknowledge(self, position: Position, call: FetchCall, session: FetchSession) -> None:
        """A follower's request named this position: it holds everything before, if it is on this log's lineage.

        Errors of the position are reported when it is read.
        """
        partition = position.partition
        if partition is None or not partition.is_leader or position.leader_epoch not in (-1, partition.leader_epoch):
            return
        try:
            ends = partition.log.ends  # attributes: this runs for every record
            in_range = ends.log_start <= position.offset <= ends.log_end
            if in_range and partition.diverging_epoch(position.offset, position.last_fetched_epoch) is None:
                partition.follower_fetched(
                    call.replica,
                    position.offset,
                    position.log_start_offset,
                    call.replica_epoch,
                    session,
                    position.tier_generation,
                    position.lacks_below,
                )
        except ProtocolError:
            return

    def _read_as_replica(
        self, call: FetchCall, position: Position, partition: Partition, bytes_left: int, at_least_one: bool
    ) -> Read:
        replicas = partition.replica_set
        if replicas is None:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = replicas.followers.get(call.replica)
        if follower is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        session = position.owner
        if follower.session is None and isinstance(session, FetchSession):
            self.acknowledge(position, call, session)  # this broker became leader after the position was named
        diverging = partition.diverging_epoch(position.offset, position.last_fetched_epoch)
        ends = partition.log.ends
        region: Region | None = None
        quota = self._quota
        held = quota.topics and call.replica not in replicas.isr and quota.covers(partition) and quota.is_exceeded
        if held:
            quota.hold(position, partition)
        elif diverging is None:
            bytes_max = min(position.bytes_max, bytes_left)
            region = partition.read_as_replica(
                position.offset, bytes_max, at_least_one=at_least_one, only_in_memory=True
            )
        tier_end, generation = partition.tier_end_offset, partition.tier_generation
        if tier_end == position.sent_tier_end and generation == position.sent_tier_generation:
            tier_end = NO_TIER_END
        row = FetchedRow(
            position.topic,
            position.index,
            NO_ERROR,
            partition.high_watermark,
            -1,
            ends.log_start,
            region,
            diverging=diverging,
            tier_end=tier_end,
            erased_end=partition.erased_end_offset if partition.erased_end_offset != position.sent_erased_end else 0,
            tier_generation=generation,
        )
        size = region.length if region is not None else 0
        return Read(row, size, diverging is not None, position.offset < ends.readable)

    def _read_as_consumer(
        self,
        position: Position,
        partition: Partition,
        call: FetchCall,
        version: int,
        bytes_left: int,
        at_least_one: bool,
        client: ClientSession,
    ) -> Read:
        high_watermark = partition.high_watermark
        stable = call.isolation == READ_COMMITTED
        log = partition.log
        region: Region | None = None
        preferred = NO_REPLICA
        if partition.is_leader:
            if call.rack and self._rack_aware:
                preferred = self._preferred(partition, call.rack.decode(errors="replace"), position.offset, client)
        elif version < READ_FROM_FOLLOWERS_FROM or not self._may_be_sent(partition, call):
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        diverging = partition.diverging_epoch(position.offset, position.last_fetched_epoch)
        if diverging is None and preferred == NO_REPLICA:
            bytes_max = min(position.bytes_max, bytes_left)
            try:
                region = partition.read_committed(
                    position.offset, bytes_max, stable=stable, at_least_one=at_least_one, only_in_memory=True
                )
            except ProtocolError as error:
                if error.code is not ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                    raise
                return self._read_cold(position, partition, call, version, bytes_max, at_least_one, client)
        last_stable = partition.last_stable_offset
        aborted: bytes | bytearray | None = b"" if stable else None
        if stable and region is not None:
            region, aborted = _aborted(log, position.offset, region, last_stable)
        row = FetchedRow(
            position.topic,
            position.index,
            ErrorCode.NONE,
            high_watermark,
            last_stable,
            log.log_start_offset,
            region,
            aborted,
            preferred,
            diverging,
        )
        size = region.length if region is not None else 0
        urgent = diverging is not None or preferred != NO_REPLICA
        more = position.offset < (last_stable if stable else high_watermark)
        return Read(row, size, urgent, more, counts_for=partition)

    def _read_cold(
        self,
        position: Position,
        partition: Partition,
        call: FetchCall,
        version: int,
        bytes_max: int,
        at_least_one: bool,
        client: ClientSession,
    ) -> Read:
        """Read below the local log. As in Apache Kafka, records end the wait even below the fetch's minimum size.

        Errors wait for the fetch's deadline, so that a client that retries at once does not spin. Followers do not
        serve the tier: OFFSET_OUT_OF_RANGE without a high watermark sends a redirected consumer back to its leader.
        """
        if not partition.is_leader:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        stable = call.isolation == READ_COMMITTED
        try:
            if self.cold is None:
                raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
            reader = client.reader_number(self._readers)
            found = self.cold.read(
                partition, position.offset, bytes_max, reader, stable=stable, at_least_one=at_least_one
            )
        except ProtocolError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            failed = self._failed(position, partition, call, version, error.code)
            return replace(failed, urgent=False, is_cold=True)
        if isinstance(found, Ticket) and found.failure is not None:
            failed = self._failed(position, partition, call, version, found.failure.code)
            return replace(failed, urgent=False, is_cold=True, ticket=found)
        ticket, region, aborted = (found, None, None) if isinstance(found, Ticket) else (None, *found)
        row = FetchedRow(
            position.topic,
            position.index,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            region,
            aborted,
        )
        if region is None:
            return Read(row, 0, False, True, ticket is not None, ticket)
        return Read(row, region.length, True, True, counts_for=partition)

    def _waiting(self, position: Position, partition: Partition, call: FetchCall, wait: PageWait) -> Read:
        """An empty row: the data is not in the page cache, and a thread reads it from the device."""
        row = FetchedRow(
            position.topic,
            position.index,
            ErrorCode.NONE,
            partition.high_watermark,
            -1 if call.replica >= 0 else partition.last_stable_offset,
            partition.log.log_start_offset,
            None,
        )
        return Read(row, 0, False, True, True, wait)

    def _may_be_sent(self, partition: Partition, call: FetchCall) -> bool:
        """Whether a leader may have redirected the consumer to this follower; tools that compare replicas send no
        rack."""
        if call.replica != CONSUMER:
            return True
        local = self._hosted.image.brokers.get(partition.node_id)
        rack = local.rack if local is not None else None
        return self._rack_aware and bool(rack) and call.rack.decode(errors="replace") == rack

    def _is_doubtful(
        self, position: Position, partition: Partition | None, call: FetchCall, client: ClientSession
    ) -> bool:
        """Whether a consumer without an epoch may take this follower for the leader."""
        if partition is None or partition.is_leader or call.replica != CONSUMER or position.leader_epoch >= 0:
            return False
        place = (client.reader_number(self._readers), partition.topic_id, partition.index)
        return not self._doubts.was_sent(place, position.offset, self._hosted.now())

    def _preferred(self, partition: Partition, rack: str, offset: int, client: ClientSession) -> int:
        replicas = partition.replica_set
        if replicas is None or offset < partition.log.local_log_start_offset:
            return NO_REPLICA
        brokers = self._hosted.image.brokers
        local = brokers.get(partition.node_id)
        now = self._hosted.now()
        readable = [
            ReadableReplica(
                follower.node,
                broker.rack,
                follower.log_start_offset,
                follower.end_offset,
                now - follower.caught_up_at,
            )
            for follower in replicas.followers.values()
            if (broker := brokers.get(follower.node)) is not None and not broker.fenced
        ]
        found = preferred_replica(rack, partition.node_id, local.rack if local is not None else None, readable, offset)
        place = (client.reader_number(self._readers), partition.topic_id, partition.index)
        if found is None or not self._redirections.may_redirect(place, offset, now):
            return NO_REPLICA
        partition.share_reads()
        return found

    def _failed(
        self, position: Position, partition: Partition | None, call: FetchCall, version: int, error: ErrorCode
    ) -> Read:
        """The row for an error. A follower whose offset is out of range also gets this leader's log start."""
        log_start = -1
        if error == ErrorCode.OFFSET_OUT_OF_RANGE and call.replica >= 0 and partition is not None:
            log_start = partition.log.log_start_offset
        hint: LeaderHint | None = None
        if error in _NEEDS_HINT:
            find = self._hints.by_id if version >= BY_ID_FROM else self._hints.by_name
            hint = find(position.topic, position.index)
        return Read(FetchedRow(position.topic, position.index, error, -1, -1, log_start, leader=hint), 0, True, True)

    def _missing(self, position: Position, version: int, client: ClientSession) -> ErrorCode:
        if self._hosted.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if version >= BY_ID_FROM:
            return self._hosted.missing_by_id(position.topic, position.index, client.topic_prefix)
        return self._hosted.missing_by_name(position.topic, position.index)


def _aborted(log: PartitionLog, offset: int, region: Region, last_stable: int) -> tuple[Region, bytearray]:
    """See `PartitionLog.aborted_in`. If they cannot be read, the region is released."""
    try:
        return log.aborted_in(offset, region, last_stable)
    except BaseException:
        region.release()
        raise
