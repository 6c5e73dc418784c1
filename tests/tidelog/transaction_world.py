"""Coordinators and partition leaders to whom things happen between any two questions of a client."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka.errors import KafkaConnectionError, KafkaError

from common.errors import ErrorCode
from tidelog.admin.library_client import check_encodes
from tidelog.admin.transaction_doctor import STATE_TOPIC, Place
from wire.messages import (
    DescribeConfigsResponse,
    DescribeProducersResponse,
    DescribeTierResponse,
    DescribeTransactionClientsResponse,
    DescribeTransactionsResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ListOffsetsResponse,
    ListTransactionsResponse,
    MetadataResponse,
    WriteTxnMarkersResponse,
)

BROKERS = (0, 1, 2)
KEEPERS = 2  # partitions of `__transaction_state`
PLACES = (Place("t", 0), Place("t", 1))
IDS = ("a", "b", "c")
HUNG = 900  # the first producer id that no coordinator knows
UNSERVED, LOADING, SERVED = range(3)
JUST_NOW_MS = 4_000_000_000_000  # all of them are young
TOPIC_ID = uuid.UUID(int=7)


class Happening(NamedTuple):
    """`what` names a method of `World`; where it cannot happen, it does not."""

    what: str
    first: int = 0
    second: int = 0


@dataclass
class Transaction:
    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    partitions: set[Place] = field(default_factory=set)


@dataclass
class Keeper:
    """A partition of `__transaction_state`. `known`: leader and epoch as metadata had them one after another."""

    known: list[tuple[int, int]]
    phase: int = SERVED

    def serves(self, broker: int, phase: int = SERVED) -> bool:
        return self.phase >= phase and self.known[-1][0] == broker


class World:
    """A client. `steps[n]` happens before its question `n` is answered, `when[name, n]` before the question `n` of that
    name."""

    def __init__(
        self,
        steps: Iterable[Sequence[Happening]] = (),
        hung: Iterable[Place] = (),
        when: Mapping[tuple[str, int], Sequence[Happening]] = MappingProxyType({}),
    ) -> None:
        self._steps = iter(steps)
        self._when = when
        self._lag = 0  # how many changes answers about metadata are behind
        self._end = 0  # of all logs
        self._silent: int | None = None
        self.keepers = [Keeper([(number % len(BROKERS), 0)]) for number in range(KEEPERS)]
        self.transactions = {name: Transaction(number) for number, name in enumerate(IDS, 1)}
        self.opened: dict[tuple[Place, int], tuple[int, int]] = {}  # by partition and producer: epoch, first offset
        self.asked: list[tuple[str, int | None]] = []
        self.markers: list[tuple[Place, int]] = []
        self._topic = (ErrorCode.NONE, True)  # of `__transaction_state`: its error, and whether it is internal
        self._ids_hidden = False
        self._is_unwritable = False
        self.started_ms = JUST_NOW_MS  # of all transactions
        self.look_interval_ms: int | None = None  # of all coordinators; None is told to nobody
        self.clients: dict[str, tuple[str, str]] | None = None  # ids and hosts by id; None is told to nobody
        self._refused: set[Place] = set()  # by leaders
        self._orphans: set[Place] = set()  # partitions without leaders
        for number, place in enumerate(hung):
            self._open(place, HUNG + number, 0)

    # what happens ------------------------------------------------------------------------------------------

    def begin(self, who: int, where: int) -> None:
        """A transaction begins, or goes on, in a partition."""
        one, place = self._transaction(who), PLACES[where % len(PLACES)]
        if one is None or one.state.startswith("Prepare"):
            return
        one.state = "Ongoing"
        one.partitions.add(place)
        if (place, one.producer_id) not in self.opened:
            self._open(place, one.producer_id, one.epoch)

    def decide(self, who: int, how: int) -> None:
        one = self._transaction(who)
        if one is not None and one.state == "Ongoing":
            one.state = ("PrepareCommit", "PrepareAbort")[how % 2]
            one.epoch += who % 2  # one of the newer protocol

    def mark(self, who: int, _: int) -> None:
        one = self._transaction(who)
        if one is not None and one.state.startswith("Prepare"):
            place = min(one.partitions)
            del self.opened[place, one.producer_id]
            one.partitions.remove(place)
            self._end += 1
            if not one.partitions:
                one.state = one.state.replace("Prepare", "Complete")

    def run(self, who: int, where: int) -> None:
        """A whole transaction, and the begin of the next."""
        self.begin(who, where)
        self.decide(who, where)
        while self.transactions[IDS[who % len(IDS)]].state.startswith("Prepare") and self._transaction(who):
            self.mark(who, 0)
        self.begin(who, where)

    def move(self, which: int, to: int) -> None:
        """The controllers elect another leader. The former one has stopped, the new one has not heard of it."""
        keeper = self.keepers[which % KEEPERS]
        keeper.known.append((BROKERS[to % len(BROKERS)], keeper.known[-1][1] + 1))
        keeper.phase = UNSERVED

    def lose(self, which: int, _: int) -> None:
        """No broker may lead it."""
        keeper = self.keepers[which % KEEPERS]
        keeper.known.append((-1, keeper.known[-1][1] + 1))
        keeper.phase = UNSERVED

    def go_on(self, which: int, _: int) -> None:
        """The new leader hears of it, or it has loaded what it leads."""
        keeper = self.keepers[which % KEEPERS]
        if keeper.known[-1][0] >= 0:
            keeper.phase = min(keeper.phase + 1, SERVED)

    def take_over(self, which: int, to: int) -> None:
        """A leader that is ready at once."""
        self.move(which, to)
        self.go_on(which, 0)
        self.go_on(which, 0)

    def lag(self, changes: int, _: int) -> None:
        self._lag = changes % 3

    def silence(self, broker: int, _: int) -> None:
        """This broker answers no more questions to coordinators, or does again."""
        self._silent = None if self._silent == broker % len(BROKERS) else broker % len(BROKERS)

    def refuse(self, which: int, _: int) -> None:
        """The partition has another leader, of which metadata says nothing yet."""
        self._refused.add(PLACES[which % len(PLACES)])

    def refuse_no_more(self, *_: int) -> None:
        """Metadata has caught up."""
        self._refused.clear()

    def orphan(self, which: int, _: int) -> None:
        """The partition loses its leader."""
        self._orphans.add(PLACES[which % len(PLACES)])

    def hide_topic(self, *_: int) -> None:
        self._topic = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)

    def hide_tenants_topic(self, *_: int) -> None:
        """On a tenant's listener the name is one of the tenant's own topics."""
        self._topic = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)

    def no_topic(self, *_: int) -> None:
        self._topic = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)

    def hide_ids(self, *_: int) -> None:
        self._ids_hidden = True

    def lose_replicas(self, *_: int) -> None:
        """Coordinators cannot write, and know what they know."""
        self._is_unwritable = True

    def _transaction(self, who: int) -> Transaction | None:
        """None while no broker coordinates it."""
        name = IDS[who % len(IDS)]
        return self.transactions[name] if self._keeper(name).phase == SERVED else None

    def _keeper(self, name: str) -> Keeper:
        return self.keepers[(ord(name[0]) if name else 0) % KEEPERS]

    def _open(self, place: Place, producer_id: int, epoch: int) -> None:
        self.opened[place, producer_id] = (epoch, self._end)
        self._end += 1

    # questions ---------------------------------------------------------------------------------------------

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": one, "is_fenced": False} for one in BROKERS]}

    def send_all(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        found: list[Any] = []
        for request, broker in requests:
            try:
                found.append(self.send(request, broker))
            except KafkaError as error:
                found.append(error)
        return found

    def send(self, request: Any, broker: int | None = None) -> Any:
        check_encodes(request)
        name = type(request).__name__
        nth = sum(name == of for of, _ in self.asked)
        for happening in [*next(self._steps, ()), *self._when.get((name.removesuffix("Request"), nth), ())]:
            getattr(self, happening.what)(happening.first, happening.second)
        self.asked.append((name, broker))
        if self._silent == broker is not None and "Transactions" in name:
            raise KafkaConnectionError("no broker answers")
        answers = {
            "MetadataRequest": self._metadata,
            "ListOffsetsRequest": self._offsets,
            "DescribeConfigsRequest": self._settings,
            "DescribeProducersRequest": self._producers,
            "DescribeTierRequest": self._tier,
            "ListTransactionsRequest": self._listed,
            "DescribeTransactionsRequest": self._described,
            "DescribeTransactionClientsRequest": self._clients_of,
            "FindCoordinatorRequest": self._found,
            "InitProducerIdRequest": self._fenced,
            "WriteTxnMarkersRequest": self._marked,
        }
        return answers[name](request, broker)

    def _metadata(self, request: Any, _: int | None) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        rows = []
        wanted = ("t", STATE_TOPIC) if request.topics is None else [one.name for one in request.topics]
        for name in wanted:
            leaders = [(-1 if place in self._orphans else 0, 0) for place in PLACES]
            if name == STATE_TOPIC:
                leaders = [one.known[max(0, len(one.known) - 1 - self._lag)] for one in self.keepers]
            code, is_internal = self._topic if name == STATE_TOPIC else (ErrorCode.NONE, False)
            partitions = [
                topic.MetadataResponsePartition(
                    error_code=0, partition_index=number, leader_id=leader, leader_epoch=epoch, replica_nodes=[0],
                    isr_nodes=[0], offline_replicas=[],
                )
                for number, (leader, epoch) in enumerate(leaders)
            ]  # fmt: skip
            rows.append(
                topic(
                    error_code=code, name=name, topic_id=TOPIC_ID, is_internal=is_internal,
                    partitions=[] if code else partitions,
                )
            )  # fmt: skip
        return MetadataResponse(brokers=[], topics=rows)

    def _offsets(self, request: Any, broker: int | None) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        rows = []
        for asked in request.topics:
            answers = [
                topic.ListOffsetsPartitionResponse(
                    partition_index=one.partition_index, timestamp=-1, leader_epoch=0, offset=self._end,
                    error_code=self._leads(asked.name, one, broker),
                )
                for one in asked.partitions
            ]  # fmt: skip
            rows.append(topic(name=asked.name, partitions=answers))
        return ListOffsetsResponse(topics=rows)

    def _leads(self, topic: str, asked: Any, broker: int | None) -> ErrorCode:
        if topic != STATE_TOPIC:
            return ErrorCode.NONE
        keeper = self.keepers[asked.partition_index]
        if not keeper.serves(-1 if broker is None else broker, LOADING):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        is_now = asked.current_leader_epoch in (-1, keeper.known[-1][1])
        return ErrorCode.NONE if is_now else ErrorCode.FENCED_LEADER_EPOCH

    def _producers(self, request: Any, _: int | None) -> Any:
        topic = DescribeProducersResponse.TopicResponse
        row = topic.PartitionResponse
        rows = []
        for asked in request.topics:
            partitions = []
            for index in asked.partition_indexes:
                place = Place(asked.name, index)
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if place in self._refused else ErrorCode.NONE
                producers = [
                    row.ProducerState(
                        producer_id=producer, producer_epoch=epoch, last_sequence=0, last_timestamp=1,
                        coordinator_epoch=0, current_txn_start_offset=start,
                    )
                    for (where, producer), (epoch, start) in sorted(self.opened.items())
                    if where == place and not code
                ]  # fmt: skip
                partitions.append(
                    row(partition_index=index, error_code=code, error_message=None, active_producers=producers)
                )
            rows.append(topic(name=asked.name, partitions=partitions))
        return DescribeProducersResponse(topics=rows)

    def _listed(self, request: Any, broker: int | None) -> Any:
        row = ListTransactionsResponse.TransactionState
        is_loading = any(one.phase == LOADING and one.known[-1][0] == broker for one in self.keepers)
        rows = [
            row(transactional_id=name, producer_id=one.producer_id, transaction_state=one.state)
            for name, one in self._served(broker)
            if one.state in request.state_filters
            and not self._ids_hidden
            and (not request.producer_id_filters or one.producer_id in request.producer_id_filters)
        ]
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
        return ListTransactionsResponse(
            error_code=code, unknown_state_filters=[], transaction_states=[] if is_loading else rows
        )

    def _clients_of(self, request: Any, broker: int | None) -> Any:
        if self.clients is None:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return DescribeTransactionClientsResponse(error_code=code, error_message=None, clients=[])
        served = {name for name, _ in self._served(broker)}
        rows = [
            DescribeTransactionClientsResponse.DescribedClient(
                transactional_id=name, client_id=self.clients[name][0], client_host=self.clients[name][1]
            )
            for name in request.transactional_ids
            if name in self.clients and name in served
        ]
        return DescribeTransactionClientsResponse(error_code=0, error_message=None, clients=rows)

    def _served(self, broker: int | None) -> Iterator[tuple[str, Transaction]]:
        for name, one in self.transactions.items():
            if broker is not None and self._keeper(name).serves(broker):
                yield name, one

    def _described(self, request: Any, broker: int | None) -> Any:
        row = DescribeTransactionsResponse.TransactionState
        rows, served = [], dict(self._served(broker))
        for name in request.transactional_ids:
            code = ErrorCode.NONE if name in served else ErrorCode.NOT_COORDINATOR
            one = served.get(name, Transaction(0))
            if name not in self.transactions:
                code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            if self._ids_hidden:
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            topics = [row.TopicData(topic=place.topic, partitions=[place.partition]) for place in one.partitions]
            rows.append(
                row(
                    error_code=code, transactional_id=name, transaction_state="" if code else one.state,
                    transaction_timeout_ms=60_000, transaction_start_time_ms=self.started_ms,
                    producer_id=one.producer_id, producer_epoch=one.epoch, topics=topics,
                )
            )  # fmt: skip
        return DescribeTransactionsResponse(transaction_states=rows)

    def _settings(self, request: Any, broker: int | None) -> Any:
        (asked,) = request.resources
        assert (asked.resource_type, asked.resource_name) == (4, str(broker)), "each broker knows its own"
        row = DescribeConfigsResponse.DescribeConfigsResult
        setting = row.DescribeConfigsResourceResult
        is_told = self.look_interval_ms is not None
        (name,) = asked.configuration_keys
        result = row(
            error_code=0 if is_told else ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message=None,
            resource_type=4,
            resource_name=asked.resource_name,
            configs=[setting(name=name, value=str(self.look_interval_ms), read_only=True, is_sensitive=False)][
                :is_told
            ],
        )
        return DescribeConfigsResponse(results=[result])

    def _tier(self, *_: Any) -> Any:
        """This user may not ask about it."""
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeTierResponse(error_code=denied, error_message=None, description=b"")

    def _found(self, request: Any, _: int | None) -> Any:
        (name,) = request.coordinator_keys
        row = FindCoordinatorResponse.Coordinator
        found = row(
            key=name, node_id=self._keeper(name).known[-1][0], host="b", port=1, error_code=0, error_message=None
        )
        return FindCoordinatorResponse(coordinators=[found])

    def _fenced(self, request: Any, _: int | None) -> Any:
        """As `broker.coordination.transactions.producers` answers a producer that has no epoch."""
        assert request.transaction_timeout_ms == 1, "brokers may allow no longer one"
        one = self.transactions[request.transactional_id]
        code = ErrorCode.NONE
        if self._is_unwritable:
            return InitProducerIdResponse(
                error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=-1, producer_epoch=-1
            )
        if one.state == "Ongoing":
            one.state = "PrepareAbort"
        if one.state.startswith("Prepare"):
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        return InitProducerIdResponse(error_code=code, producer_id=one.producer_id, producer_epoch=one.epoch + 1)

    def _marked(self, request: Any, _: int | None) -> Any:
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult
        topic = result.WritableTxnMarkerTopicResult
        (marker,) = request.markers
        (asked,) = marker.topics
        (index,) = asked.partition_indexes
        self.markers.append((Place(asked.name, index), marker.producer_id))
        answer = topic(
            name=asked.name,
            partitions=[topic.WritableTxnMarkerPartitionResult(partition_index=index, error_code=0)],
        )
        return WriteTxnMarkersResponse(markers=[result(producer_id=marker.producer_id, topics=[answer])])
