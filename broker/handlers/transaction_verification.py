"""Asks coordinators whether partitions that this broker leads are in a transaction, before it begins there.

There is one question for each permission (`broker.partitions.transactional_appends`), so for each producer's epoch and
the transactional id that claims it, however many batches wait for it: they wait in order, and are appended or refused
in order. Questions, and the bytes that wait for answers, are bounded, and so is a tenant's part (`waiting_share.py`).
While the producer's previous transaction is being completed, a question of the new protocol is asked again for a short
while: the client would come again later than that. Markers take a few milliseconds, so it is asked soon at first, and
then after pauses that double.

Source: KIP-890 and the behaviour of Apache Kafka 4.2's ReplicaManager and AddPartitionsToTxnManager.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from broker.coordination.groups.tenant_index import bytes_of_id
from broker.coordination.transactions.config import is_too_long
from broker.coordination.transactions.questions import Coordinators, PartitionQuestion
from broker.handlers.waiting_share import WaitingShare
from broker.partitions.partition import Partition
from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import VerificationSettings
from kraft.image.tenants import tenant_of

WAITERS_AT_ONCE, BYTES_AT_ONCE = 16, 1 << 20  # in one turn of the loop: each may append its batch
FIRST_PAUSE_S = 0.002
WAITER_BYTES = 500  # of memory, besides those of the batch, unless its transactional id takes more
ID_COPIES = 2  # in the request, and in the question


class PermissionWaiter(Protocol):
    """A batch, or a caller, that waits for one permission."""

    @property
    def size(self) -> int:
        """Bytes that are kept meanwhile."""
        ...

    def permitted(self, permission: Permission) -> None:
        """The coordinator has confirmed. The permission may be void by now: ask `Partition.check_permission`."""
        ...

    def refused(self, error: ErrorCode) -> None: ...


class _Question:
    """One permission until its answer, with everything that waits for it, in order."""

    __slots__ = ("_next_s", "again_until", "asked", "partition", "permission", "waiters")

    def __init__(
        self, asked: PartitionQuestion, partition: Partition, permission: Permission, again_until: float
    ) -> None:  # fmt: skip
        self.asked = asked
        self.partition = partition
        self.permission = permission
        self.again_until = again_until
        self._next_s = FIRST_PAUSE_S
        self.waiters: deque[PermissionWaiter] = deque()

    def pause_s(self, longest_s: float) -> float:
        """Before it is asked again, twice as long each time."""
        pause_s = min(self._next_s, longest_s)
        self._next_s = 2 * pause_s
        return pause_s


class _PermissionFuture:
    """A caller of `permit`."""

    size = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[Permission] = asyncio.get_running_loop().create_future()

    def permitted(self, permission: Permission) -> None:
        if not self.future.done():
            self.future.set_result(permission)

    def refused(self, error: ErrorCode) -> None:
        if not self.future.done():
            self.future.set_exception(ProtocolError(error))


class TransactionVerification:
    """One per broker. `reach` once before the first question."""

    def __init__(self, settings: VerificationSettings) -> None:
        self._settings = settings
        self._coordinators: Coordinators | None = None
        self._questions: dict[Permission, _Question] = {}
        self._outcomes: deque[tuple[_Question, ErrorCode]] = deque()
        self._telling: asyncio.Handle | None = None
        self._share = WaitingShare()
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def reach(self, coordinators: Coordinators) -> None:
        """Ask these. Called once: coordinators need partitions before them."""
        self._coordinators = coordinators

    def configure(self, settings: VerificationSettings) -> None:
        self._settings = settings

    @property
    def waiting_count(self) -> int:
        """Questions without an answer."""
        return len(self._questions)

    @property
    def waiting_bytes(self) -> int:
        return self._share.size

    def asks(self, *, adds: bool) -> bool:
        """Whether coordinators are asked about partitions of data. In the new protocol they always are: its clients add
        no partitions."""
        return adds or self._settings.verification_enable

    def begin(
        self,
        partition: Partition,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        waiter: PermissionWaiter,
        *,
        adds: bool,
        is_shared: bool = False,
    ) -> None:
        """Ask for a permission unless there is one, and tell `waiter`, at once if it is granted. `is_shared`: see
        `TransactionalAppends.begin`.

        Raises ProtocolError: NOT_LEADER_OR_FOLLOWER, INVALID_PRODUCER_EPOCH, NOT_ENOUGH_REPLICAS if too much waits,
        INVALID_PRODUCER_ID_MAPPING for an id that is too long for any coordinator to have: one could not even read the
        longest ones, and would close the connection that carries all tenants' questions.
        """
        if is_too_long(transactional_id):
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        permission = partition.transactions.begin(
            transactional_id, producer_id, producer_epoch, adds=adds, is_shared=is_shared
        )
        question = self._questions.get(permission)
        if question is None and permission.is_granted:
            waiter.permitted(permission)
            return
        settings, share = self._settings, self._share
        tenant, count, size = tenant_of(transactional_id), int(question is None), _held_bytes(waiter, transactional_id)
        if self._stopped or not share.admits(tenant, count, size, settings.waiting_max, settings.waiting_bytes_max):
            if question is None:
                partition.transactions.withdraw(permission)
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many batches wait for transaction coordinators")
        share.add(tenant, count, size)
        if question is not None:
            question.waiters.append(waiter)
            return
        asked = PartitionQuestion(
            transactional_id, producer_id, producer_epoch, partition.topic, partition.index, not adds
        )  # fmt: skip
        again_until = self._loop.time() + settings.add_retry_max_ms / 1000
        question = self._questions[permission] = _Question(asked, partition, permission, again_until)
        question.waiters.append(waiter)
        self._ask(question)

    async def permit(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: Partition, *, adds: bool
    ) -> Permission:
        """A permission to append to `partition`, one of `__consumer_offsets`, in this transaction; ask
        `Partition.check_permission` just before. Its coordinator is asked once in a transaction and leadership,
        whatever the settings and the log say: all tenants of a cell share these partitions, and the log would take any
        epoch that a client names for the producer's own, and any open transaction for the client's.

        Raises ProtocolError as `begin`, and with the coordinator's error.
        """
        waiter = _PermissionFuture()
        self.begin(partition, transactional_id, producer_id, producer_epoch, waiter, adds=adds, is_shared=True)
        return await waiter.future

    def stop(self) -> None:
        """Ask no more. What waits ends with its connection."""
        self._stopped = True
        for question in self._questions.values():
            question.waiters.clear()
        self._questions.clear()
        self._outcomes.clear()
        self._share = WaitingShare()

    def _ask(self, question: _Question) -> None:
        if self._stopped:
            return
        if self._coordinators is None:
            self._loop.call_soon(self._answered, question, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self._coordinators.ask(question.asked, lambda error: self._answered(question, error))

    def _answered(self, question: _Question, error: ErrorCode) -> None:
        if self._stopped:
            return
        permission = question.permission
        may_retry = permission.adds and self._loop.time() < question.again_until
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and may_retry:
            self._loop.call_later(question.pause_s(self._settings.add_retry_ms / 1000), self._ask, question)
            return
        partition = question.partition
        if not partition.transactions.is_of_this_leadership(permission):
            partition.note_refusal()  # whatever the answer is, the batches that wait for it are rejected
        elif error is not ErrorCode.NONE:
            partition.transactions.withdraw(permission)
        self._outcomes.append((question, _FOR_PRODUCERS.get(error, error)))
        if self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        """Tell waiters in order, some per turn; those that come meanwhile queue behind them. One that fails ends this
        turn, and the next ones come in the next."""
        self._telling = None
        try:
            self._tell_some()
        finally:
            if self._outcomes:
                self._telling = self._loop.call_soon(self._tell)

    def _tell_some(self) -> None:
        answered_bytes = 0
        for _ in range(WAITERS_AT_ONCE):
            if not self._outcomes:
                return
            if answered_bytes >= BYTES_AT_ONCE:
                break
            question, error = self._outcomes[0]
            transactional_id = question.asked.transactional_id
            tenant = tenant_of(transactional_id)
            if question.waiters:
                waiter = question.waiters.popleft()
                answered_bytes += waiter.size
                self._share.add(tenant, 0, -_held_bytes(waiter, transactional_id))
                if error is ErrorCode.NONE:
                    waiter.permitted(question.permission)
                else:
                    waiter.refused(error)
            if not question.waiters:
                if error is ErrorCode.NONE:
                    question.partition.transactions.grant(question.permission)
                self._outcomes.popleft()
                if self._questions.pop(question.permission, None) is not None:
                    self._share.add(tenant, -1, 0)


def _held_bytes(waiter: PermissionWaiter, transactional_id: str) -> int:
    return waiter.size + max(WAITER_BYTES, ID_COPIES * bytes_of_id(transactional_id))


_FOR_PRODUCERS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}
"""A producer takes PRODUCER_FENCED for final, and no error of this broker's own rights concerns it."""
