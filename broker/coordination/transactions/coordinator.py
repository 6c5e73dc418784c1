"""The transaction coordinator of one broker: routes requests to the shard of their transactional id, and draws producer
ids where a decision needs one."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.coordination.placement import keeping_partition
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.shard import CoordinatorRecord, Decide, Now, Ticket
from broker.coordination.transactions.completions import Completions
from broker.coordination.transactions.config import TransactionConfig, TransactionLimits
from broker.coordination.transactions.pattern_search import PatternSearch
from broker.coordination.transactions.producers import check_init
from broker.coordination.transactions.records import adding_cost
from broker.coordination.transactions.shard_tasks import ShardTasks
from broker.coordination.transactions.transaction_shard import TransactionDecision, TransactionShard
from broker.coordination.transactions.values import (
    NO_PARTITIONS,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    MarkersToWrite,
    NeedsId,
    Partitions,
    Producer,
    Transaction,
    TransactionFilter,
)
from common.client_patterns import Matcher
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Lane, Work
from kraft.image.key_ranges import Keeping, keeping
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import local_name, tenant_of
from kraft.records import KeysPhase
from kraft.topic_names import TRANSACTION_TOPIC

LANE = "transactions"  # of clients: lists, and decisions about large transactions
RETRY_S = 0.1  # after a completion that could not be recorded
COMPLETED_AT_ONCE = 200

DecideWithId = Callable[[TransactionShard, int | None, Now], TransactionDecision]

_log = logging.getLogger(__name__)


class FreshIds(Protocol):
    """`coordination.producer_ids.ProducerIds`."""

    async def take(self) -> int: ...


class TransactionCoordinator:
    """Every method raises ProtocolError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and
    the errors of its request. `make_shard` is for `CoordinatorRuntime.host`. Owns tasks: at most two
    for each partition that it leads."""

    def __init__(
        self,
        runtime: CoordinatorRuntime,
        producer_ids: FreshIds,
        config: TransactionConfig,
        image: Callable[[], MetadataImage],
        version: Callable[[], int],
        limits_of: Callable[[str | None], TransactionLimits] = lambda _: TransactionLimits(),
        held_s: float = 0.0,
    ) -> None:
        """`version`, `limits_of`: see `TransactionShard`. `held_s`: how long a client's partitions wait for its
        previous transaction to be complete."""
        self._runtime = runtime
        self._producer_ids = producer_ids
        self._config = config
        self._image = image
        self._version = version
        self._limits_of = limits_of
        self._written: dict[tuple[int, int], list[MarkersToWrite]] = {}  # by partition and leader epoch
        self._to_fence: dict[int, dict[str, bool]] = {}
        """By partition and id, transactions whose fence needs a producer id: whether they are to be removed."""
        self._held_s = held_s
        self._completions = Completions()
        self._serials = itertools.count()
        self._tasks = ShardTasks()
        self._patterns = PatternSearch(lambda prefix: runtime.rest(_lane_of(prefix)))

    topic = TRANSACTION_TOPIC

    def make_shard(self, index: int) -> TransactionShard:
        def keeping_of(transactional_id: str) -> Keeping:
            image = self._image()
            topic = image.topics.get(TRANSACTION_TOPIC)
            return Keeping.SERVED if topic is None else keeping(topic, image.tenants.owner(transactional_id), index)

        def wants_id(transactional_id: str, removal: bool) -> None:
            of_shard = self._to_fence.setdefault(index, {})
            of_shard[transactional_id] = removal or of_shard.get(transactional_id, False)
            self._tasks.begin(f"transaction-fences-{index}", lambda: self._fence_all(index))

        def keys_phase_of(transactional_id: str) -> KeysPhase:
            tenant = self._image().tenants.owner(transactional_id)
            return KeysPhase.SETTLED if tenant is None else tenant.keys_phase

        return TransactionShard(
            config=self._config,
            version=self._version,
            limits_of=self._limits_of,
            keeping_of=keeping_of,
            wants_id=wants_id,
            keys_phase_of=keys_phase_of,
            serials=self._serials,
        )

    def partition_of(self, transactional_id: str) -> int:
        """The partition that holds the id; COORDINATOR_NOT_AVAILABLE if there is none. During a handover as
        `GroupCoordinator.partition_of`."""
        image = self._image()
        topic, index = (
            image.topics.get(TRANSACTION_TOPIC),
            keeping_partition(image, TRANSACTION_TOPIC, transactional_id),
        )
        if topic is None or index is None:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if keeping(topic, image.tenants.owner(transactional_id), index) is not Keeping.SERVED:
            comes = self._runtime.leads(TRANSACTION_TOPIC, index)
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if comes else ErrorCode.NOT_COORDINATOR)
        return index

    async def _in_turn(self, transactional_id: str, *, records: bool, added: Partitions = NO_PARTITIONS) -> int:
        """`partition_of` an id, in a turn of the loop with room for this; `records`: for a decision that changes its
        state, and adds `added`. A transaction of thousands of partitions takes milliseconds to decode, where a load has
        left that to be done, and to encode. Clients and leaders may ask for many of them at a time."""

        def reading(shard: TransactionShard) -> int:
            return shard.reading_cost(transactional_id)

        def recording(shard: TransactionShard) -> int:
            return shard.recording_cost(transactional_id) + adding_cost(added)

        lane = Lane(LANE, tenant_of(transactional_id))
        index = self.partition_of(transactional_id)
        if cost := self._runtime.cost(TRANSACTION_TOPIC, index, reading):
            await self._runtime.room(cost, lane)
            await self._find(transactional_id, self.partition_of(transactional_id))
            index = self.partition_of(transactional_id)
        if records and (cost := self._runtime.cost(TRANSACTION_TOPIC, index, recording)):
            await self._runtime.room(cost, lane)
            index = self.partition_of(transactional_id)
        return index

    async def _find(self, transactional_id: str, index: int) -> Transaction | None:
        def query(shard: TransactionShard, _: Now) -> Transaction | None:
            return shard.find(transactional_id)

        return await self._runtime.read(TRANSACTION_TOPIC, index, query)

    # producers ---------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: InitProducer) -> Producer:
        """Raises also INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, POLICY_VIOLATION (too many ids),
        CONCURRENT_TRANSACTIONS, after an ongoing transaction's abort is recorded, and
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, if the tenant is deleted while it waits for a producer id: the partition
        may have been reported as clear of the tenant's ids."""
        check_init(request, self._config)
        owner = self._image().tenants.owner(request.transactional_id)

        def decide(shard: TransactionShard, fresh_id: int | None, now: Now) -> TransactionDecision:
            tenant = None if owner is None else self._image().tenants.get(owner.id)
            if owner is not None and (tenant is None or not tenant.may_log_in):
                raise ProtocolError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the tenant is deleted")
            return shard.init_producer_id(request, fresh_id, now)

        return await self._decide_with_id(request.transactional_id, decide)

    async def end(self, request: EndTransaction) -> Producer:
        """The producer of the next transaction; in the old protocol none, which keeps what it has.

        Raises also INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_TXN_STATE.
        """
        return await self._decide_with_id(
            request.transactional_id, lambda shard, fresh_id, now: shard.end(request, fresh_id, now)
        )

    async def _decide_with_id(self, transactional_id: str, decide: DecideWithId) -> Producer:
        """A drawn producer id that is not needed after all is never used."""
        _check_named(transactional_id)
        fresh_id: int | None = None
        while True:
            index = await self._in_turn(transactional_id, records=True)
            reply = await self._runtime.write(TRANSACTION_TOPIC, index, _with_id(decide, fresh_id))
            if isinstance(reply, Producer):
                return reply
            if isinstance(reply, ErrorCode):
                raise ProtocolError(reply)
            fresh_id = await self._producer_ids.take()

    # partitions --------------------------------------------------------------------------------------------

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Partitions,
        *,
        new_protocol: bool,
    ) -> None:
        """Returns when they are in the transaction. Raises also INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE (too much).

        In the old protocol a client asks, and waits here for a short while rather than be answered
        CONCURRENT_TRANSACTIONS. In the new one a leader asks, for several producers at once, and asks again by itself.
        """
        _check_named(transactional_id)
        request = AddPartitions(transactional_id, producer_id, producer_epoch, partitions, new_protocol)

        try:
            await self._add(request)
        except ProtocolError as error:
            if new_protocol or error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            await self._add_once_complete(request)

    async def _add(self, request: AddPartitions) -> None:
        def decide(shard: TransactionShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, None]:
            return shard.add_partitions(request, now)

        index = await self._in_turn(request.transactional_id, records=True, added=request.partitions)
        await self._runtime.write(TRANSACTION_TOPIC, index, decide)

    async def _add_once_complete(self, request: AddPartitions) -> None:
        """Raises CONCURRENT_TRANSACTIONS when it has waited for as long as it may."""
        completion = self._completions.next_of(request.transactional_id)
        try:  # it may have been completed just before
            await self._add(request)
        except ProtocolError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            await asyncio.wait((completion,), timeout=self._held_s)
            await self._add(request)
        finally:
            self._completions.drop(request.transactional_id, completion)

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> tuple[ErrorCode, ...]:
        """One code per partition, in order: NONE, or TRANSACTION_ABORTABLE for one that is not in the transaction.
        Raises also INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS."""
        _check_named(transactional_id)

        def query(shard: TransactionShard, _: Now) -> tuple[ErrorCode, ...]:
            return shard.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)

        index = await self._in_turn(transactional_id, records=False)
        return await self._runtime.read(TRANSACTION_TOPIC, index, query)

    # administration ----------------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> Transaction:
        """Raises also INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND."""
        _check_named(transactional_id)
        found = await self._find(transactional_id, await self._in_turn(transactional_id, records=False))
        if found is None:
            raise ProtocolError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    async def list_transactions(self, wanted: TransactionFilter) -> list[ListedTransaction]:
        """Raises also INVALID_REGULAR_EXPRESSION; COORDINATOR_LOAD_IN_PROGRESS while some are not here yet."""
        tenant = self._image().tenants.owner(wanted.prefix)
        copies = tenant is not None and tenant.keys_phase is KeysPhase.IDS_COPYING
        if copies or self._runtime.is_loading(TRANSACTION_TOPIC):
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        matches = await self._patterns.compiled(wanted.pattern, wanted.prefix) if wanted.pattern else None
        found: list[ListedTransaction] = []
        for index in self._runtime.active(TRANSACTION_TOPIC):
            try:
                found += await self._listed(index, wanted, matches)
            except ProtocolError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:  # otherwise its new coordinator lists them
                    raise
        return found

    async def _listed(self, index: int, wanted: TransactionFilter, matches: Matcher | None) -> list[ListedTransaction]:
        """By duration come those last that pass all other filters, because it may have to decode them."""
        if matches is None:
            return await self._listed_by_shard(index, wanted)
        listed = await self._listed_by_shard(index, wanted._replace(longer_than_ms=-1))
        found = await self._patterns.matching(listed, matches, wanted.prefix)
        if wanted.longer_than_ms < 0:
            return found
        return await self._listed_by_shard(index, wanted, [one.transactional_id for one in found])

    async def _listed_by_shard(
        self, index: int, wanted: TransactionFilter, among: Sequence[str] | None = None
    ) -> list[ListedTransaction]:
        def query(shard: TransactionShard, now: Now) -> Work[list[ListedTransaction]]:
            return shard.list_transactions(wanted, now, among)

        return await self._runtime.read_slowly(TRANSACTION_TOPIC, index, query, _lane_of(wanted.prefix))

    # what happens by itself --------------------------------------------------------------------------------

    def markers_written(self, index: int, leader_epoch: int, markers: MarkersToWrite) -> None:
        """All markers of a transaction are written: record soon that it is complete, unless the shard has another
        leader epoch by then. Its leader asks for the markers again."""
        self._written.setdefault((index, leader_epoch), []).append(markers)
        name = f"transaction-completions-{index}-{leader_epoch}"
        self._tasks.begin(name, lambda: self._complete_all(index, leader_epoch))

    # deleted tenants ---------------------------------------------------------------------------------------

    def hosted(self) -> list[int]:
        """The partitions of `__transaction_state` whose shards serve here, in order."""
        return self._runtime.active(TRANSACTION_TOPIC)

    async def remove_keys(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        """See `tenant_cleanup.KeyHolder`. Transactions that are open are aborted, and their ids removed later."""

        def decide(shard: TransactionShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, int]:
            return shard.remove_ids(prefixes, most, now)

        return await self._runtime.write(TRANSACTION_TOPIC, index, decide)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _complete_all(self, index: int, leader_epoch: int) -> None:
        """Record completions as they come. What cannot be recorded now is tried again."""
        while (written := self._written.pop((index, leader_epoch), None)) is not None:
            if not await self._complete(index, leader_epoch, written):
                await asyncio.sleep(RETRY_S)

    async def _fence_all(self, index: int) -> None:
        while (to_fence := self._to_fence.pop(index, None)) is not None:
            for transactional_id, removal in to_fence.items():
                await self._fence(index, transactional_id, removal=removal)

    async def _complete(self, index: int, leader_epoch: int, written: list[MarkersToWrite]) -> bool:
        """False if some wait for the next time."""
        for at in range(0, len(written), COMPLETED_AT_ONCE):
            if self._runtime.leader_epoch(TRANSACTION_TOPIC, index) != leader_epoch:
                return True
            try:
                some = written[at : at + COMPLETED_AT_ONCE]
                await self._runtime.write(TRANSACTION_TOPIC, index, _completes(some))
                self._completions.completed({markers.transactional_id for markers in some})
            except ProtocolError as error:
                _log.info("completions of transactions wait", extra={"partition": index, "error": error.code.name})
                for markers in written[at:]:
                    self.markers_written(index, leader_epoch, markers)
                return False
        return True

    async def _fence(self, index: int, transactional_id: str, *, removal: bool) -> None:
        """A transaction is past its timeout, or of a deleted tenant, and its producer id has no epoch left. A failure
        is tried again when the shard looks for timeouts again, or the tenant's keys are to be removed again."""
        try:
            fresh_id = await self._producer_ids.take()
            await self._runtime.write(TRANSACTION_TOPIC, index, _fences(transactional_id, fresh_id, removal=removal))
        except ProtocolError as error:
            _log.info("a fence waits", extra={"partition": index, "error": error.code.name})


def _lane_of(prefix: str) -> Lane:
    return Lane(LANE, prefix)


def _with_id(decide: DecideWithId, fresh_id: int | None) -> Decide[TransactionShard, Producer | ErrorCode | NeedsId]:
    return lambda shard, now, _: decide(shard, fresh_id, now)


def _completes(written: list[MarkersToWrite]) -> Decide[TransactionShard, None]:
    return lambda shard, now, _: shard.complete(written, now)


def _fences(transactional_id: str, fresh_id: int, *, removal: bool) -> Decide[TransactionShard, None]:
    return lambda shard, now, _: shard.fence_with(transactional_id, fresh_id, now, removal=removal)


def _check_named(transactional_id: str) -> None:
    if not local_name(transactional_id):
        raise ProtocolError(ErrorCode.INVALID_REQUEST)
