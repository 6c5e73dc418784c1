"""Transactions in one partition that this broker leads: which batches may begin one, and the markers that end them.

A batch that would begin a transaction needs a permission: its producer's coordinator has confirmed that the partition
is in the transaction. The transaction's marker, a newer epoch of the producer and the end of this leadership void a
permission, so that a batch which waited too long does not begin a transaction that would never end. Within an open
transaction batches need none.

Producer ids and epochs are small numbers that any client can name. Until a coordinator has confirmed that they are
those of the client's transactional id, they concern that id's batches alone: no other is fenced or refused by them.

Source: KIP-98, KIP-890, KIP-1228 and the behaviour of Apache Kafka 4.2's UnifiedLog and ProducerAppendInfo.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.partitions.uncommitted_markers import UncommittedMarkers
from common.errors import ErrorCode, ProtocolError
from records.batch import BatchHeader
from records.control import EndMarker, MarkerKind, build_marker
from storage.log.partition_log import Appended, PartitionLog
from storage.producers.producer_state import NO_EPOCH


class Marker(NamedTuple):
    """The end of a producer's transaction, for a partition. `new_protocol`: its epoch must exceed the producer's
    (KIP-890). `coordinator_epoch`: the leader epoch of the coordinator's partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    new_protocol: bool


class Marked(NamedTuple):
    """What became of a marker: it is committed when everything below `end_offset` is. `is_repeated`: it repeats one
    that is here and changes nothing, so it was not appended."""

    end_offset: int
    is_repeated: bool


class Permission:
    """Lets one producer's epoch begin a transaction in one partition, once `is_granted`. Compared by identity: a later
    one for the same epoch belongs to another transaction."""

    __slots__ = ("adds", "is_granted", "leadership", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self, transactional_id: str, producer_id: int, producer_epoch: int, leadership: Permissions, *, adds: bool
    ) -> None:
        """`leadership`: the permissions of the leadership in which it is asked for. A leader epoch may have several of
        them: a leader steps back while it waits for the tier. `adds`: the producer speaks the new protocol, in which
        the leader adds the partition to the transaction."""
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.leadership = leadership
        self.adds = adds
        self.is_granted = False

    def grant(self) -> None:
        """The coordinator has confirmed, or the transaction is open already."""
        self.is_granted = True


class Permissions:
    """The valid permissions of one partition: at most one per producer that is granted, which stays until its
    transaction's marker comes, and those that coordinators are being asked for, at most one per producer and
    transactional id. As many of those are kept as there are questions."""

    __slots__ = ("_asked", "_granted")

    def __init__(self) -> None:
        self._granted: dict[int, Permission] = {}
        self._asked: dict[int, dict[str, Permission]] = {}

    def __len__(self) -> int:
        return len(self._granted) + sum(map(len, self._asked.values()))

    def __contains__(self, permission: Permission) -> bool:
        producer_id = permission.producer_id
        return (
            self._granted.get(producer_id) is permission
            or self.find_asked(producer_id, permission.transactional_id) is permission
        )

    def find_granted(self, producer_id: int) -> Permission | None:
        return self._granted.get(producer_id)

    def find_asked(self, producer_id: int, transactional_id: str) -> Permission | None:
        of_producer = self._asked.get(producer_id)
        return None if of_producer is None else of_producer.get(transactional_id)

    def ask(self, permission: Permission) -> None:
        """A coordinator will be asked. It replaces an earlier one of its producer and transactional id."""
        self._asked.setdefault(permission.producer_id, {})[permission.transactional_id] = permission

    def grant(self, permission: Permission) -> None:
        """It replaces the granted one of its producer, unless that has a newer epoch."""
        self._drop_asked(permission)
        held = self._granted.get(permission.producer_id)
        if held is None or held.producer_epoch <= permission.producer_epoch:
            permission.grant()
            self._granted[permission.producer_id] = permission

    def void_ended(self, marker: Marker) -> None:
        """The marker ends the transaction of this permission. A marker of the new protocol has the epoch of the next
        transaction, whose permission stays: its batch may wait here until this marker has come everywhere."""
        ended_epoch = marker.producer_epoch - 1 if marker.new_protocol else marker.producer_epoch
        held = self._granted.get(marker.producer_id)
        if held is not None and held.producer_epoch <= ended_epoch:
            del self._granted[marker.producer_id]
        for asked in tuple(self._asked.get(marker.producer_id, {}).values()):
            if asked.producer_epoch <= ended_epoch:
                self._drop_asked(asked)

    def withdraw(self, permission: Permission) -> None:
        """The coordinator has refused it."""
        self._drop_asked(permission)

    def _drop_asked(self, permission: Permission) -> None:
        of_producer = self._asked.get(permission.producer_id, {})
        if of_producer.get(permission.transactional_id) is permission:
            del of_producer[permission.transactional_id]
            if not of_producer:
                del self._asked[permission.producer_id]


class LedTransactions:
    """What the leader of one partition knows of its transactions beside the log, until its leadership ends."""

    __slots__ = ("markers", "permissions")

    def __init__(self, epoch_start_offset: int) -> None:
        self.permissions = Permissions()
        self.markers = UncommittedMarkers(epoch_start_offset)


class LedPartition(Protocol):
    """What the transactions need of `broker.partitions.partition.Partition`."""

    @property
    def log(self) -> PartitionLog: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def check_appendable(self, acks: int) -> None: ...

    def check_batch(self, view: memoryview, at: int, end: int, now_ms: int, *, transactional: bool) -> BatchHeader: ...

    def find_repeated(self, header: BatchHeader) -> Appended | None: ...

    def append_batch(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader | None,
        now_ms: int,
    ) -> Appended: ...

    def note_refusal(self) -> None: ...


class TransactionalAppends:
    """Created per call; its state is in the partition's `LedTransactions` and in its log's producers."""

    __slots__ = ("_markers", "_partition", "_permissions")

    def __init__(self, partition: LedPartition, led: LedTransactions) -> None:
        self._partition = partition
        self._permissions = led.permissions
        self._markers = led.markers

    # permissions -------------------------------------------------------------------------------------------

    def needs_permission(self, transactional_id: str, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch of this producer begins a transaction, or comes behind one that waits to do so."""
        if self._permissions.find_asked(producer_id, transactional_id) is not None:
            return True
        return not self._partition.log.producers.has_open_transaction(producer_id, producer_epoch)

    def begin(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, adds: bool, is_shared: bool = False
    ) -> Permission:
        """The valid permission of this id and epoch, or a new one. A new one is granted if its transaction is open,
        unless another id has been granted that epoch; otherwise the coordinator is to be asked. It always is where
        tenants share the partition (`is_shared`): the log does not say whose the open transaction is.

        Raises ProtocolError: NOT_LEADER_OR_FOLLOWER, INVALID_PRODUCER_EPOCH (a newer epoch is known),
        KAFKA_STORAGE_ERROR.
        """
        partition = self._partition
        partition.check_appendable(0)
        self._check_epoch(transactional_id, producer_id, producer_epoch)
        asked = self._permissions.find_asked(producer_id, transactional_id)
        if asked is not None and asked.producer_epoch == producer_epoch:
            return asked
        granted = self._permissions.find_granted(producer_id)
        is_taken = granted is not None and granted.producer_epoch == producer_epoch
        if granted is not None and is_taken and granted.transactional_id == transactional_id:
            return granted
        permission = Permission(transactional_id, producer_id, producer_epoch, self._permissions, adds=adds)
        if not is_shared and not is_taken and partition.log.producers.has_open_transaction(producer_id, producer_epoch):
            self._permissions.grant(permission)
        else:
            self._permissions.ask(permission)
        return permission

    def grant(self, permission: Permission) -> None:
        """The coordinator has confirmed, and nothing waits for the permission any more. A void one stays so."""
        if permission in self._permissions:
            self._permissions.grant(permission)

    def withdraw(self, permission: Permission) -> None:
        """The coordinator has refused it. Batches that were sent behind must not come before what is sent again."""
        self._permissions.withdraw(permission)
        self._partition.note_refusal()

    def is_of_this_leadership(self, permission: Permission) -> bool:
        return permission.leadership is self._permissions

    def check(self, permission: Permission) -> None:
        """Raises ProtocolError unless a batch may be appended with it now: NOT_LEADER_OR_FOLLOWER after a change of
        leadership, INVALID_PRODUCER_EPOCH after a newer epoch, INVALID_TXN_STATE after a marker,
        KAFKA_STORAGE_ERROR."""
        partition = self._partition
        partition.check_appendable(0)
        if not self.is_of_this_leadership(permission):
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership has changed meanwhile")
        self._check_epoch(permission.transactional_id, permission.producer_id, permission.producer_epoch)
        if permission not in self._permissions:
            raise ProtocolError(ErrorCode.INVALID_TXN_STATE, "the transaction has ended in this partition")

    def _check_producers_read(self) -> None:
        """Raises ProtocolError(KAFKA_STORAGE_ERROR) while the log is barred. After a truncation its producers are those
        from before, until a thread has read them: epochs, and the ends of transactions, that were cut still count."""
        barred = self._partition.log.barred
        if barred is not None:
            self._partition.note_refusal()
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, barred)

    def _check_epoch(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """The epochs that count are the log's, the granted one, and one that the same transactional id asks for."""
        self._check_producers_read()
        newest = self._partition.log.producers.epoch_of(producer_id)
        for held in (
            self._permissions.find_granted(producer_id),
            self._permissions.find_asked(producer_id, transactional_id),
        ):
            if held is not None:
                newest = max(newest, held.producer_epoch)
        if producer_epoch < newest:
            message = f"epoch {producer_epoch} of producer {producer_id} is older than {newest}"
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH, message)

    # batches -----------------------------------------------------------------------------------------------

    def append_produced(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        acks: int,
        now_ms: int,
        permission: Permission | None,
    ) -> Appended:
        """As `Partition.append_produced`, for a transactional batch. `permission`: None within an open transaction,
        and where coordinators are not asked."""
        partition = self._partition
        partition.check_appendable(acks)
        header = partition.check_batch(view, at, end, now_ms, transactional=True)
        if permission is not None:
            self.check(permission)
        return self.append_checked(buffer, view, at, end, header, now_ms, permission)

    def append_checked(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader,
        now_ms: int,
        permission: Permission | None,
    ) -> Appended:
        """Append a batch whose header and permission are checked. A duplicate is answered with its original's
        offsets."""
        partition = self._partition
        starts_at_zero = permission is not None and permission.adds
        is_known = partition.log.producers.epoch_of(header.producer_id) != NO_EPOCH
        if starts_at_zero and header.base_sequence != 0 and not is_known:
            message = f"sequence {header.base_sequence} at the start of epoch {header.producer_epoch}"
            raise ProtocolError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
        try:
            repeated = partition.find_repeated(header)
            if repeated is not None:
                return repeated
            return partition.append_batch(buffer, view, at, end, header, now_ms)
        except ProtocolError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                partition.note_refusal()
            raise

    # markers -----------------------------------------------------------------------------------------------

    def append_marker(self, marker: Marker, now_ms: int, acks: int = -1) -> Marked:
        """Append the marker, unless it repeats one. With `acks` 0 it is appended even if the ISR is too small to commit
        it now. One that repeats an earlier one is taken also while the log has no room.

        It may only be acknowledged when it is committed, also one that repeats an earlier one. Raises
        ProtocolError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        partition = self._partition
        partition.check_appendable(acks)
        self._check_producers_read()  # or a marker that was cut would count as repeated, and never come again
        log, producer_id, epoch = partition.log, marker.producer_id, marker.producer_epoch
        log.producers.on_high_watermark(partition.high_watermark)
        changes = log.producers.check_marker(producer_id, epoch, marker.coordinator_epoch, exceeds=marker.new_protocol)
        if not changes:
            self._permissions.void_ended(marker)
            return Marked(self._markers.end_of(producer_id), is_repeated=True)
        kind = MarkerKind.COMMIT if marker.commit else MarkerKind.ABORT
        batch = build_marker(producer_id, epoch, EndMarker(kind, marker.coordinator_epoch, now_ms))
        log.check_admits(len(batch))
        self._permissions.void_ended(marker)
        with memoryview(batch) as view:
            end = partition.append_batch(batch, view, 0, len(batch), None, now_ms).next_offset
        self._markers.add(producer_id, end, partition.high_watermark)
        return Marked(end, is_repeated=False)
