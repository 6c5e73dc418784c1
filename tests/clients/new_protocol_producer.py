"""A producer of the new transaction protocol (KIP-890), which no client library for Python speaks: blocking, on plain
sockets. Errors that Java's producer repeats are repeated, all others end it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from common.errors import ErrorCode, known_error
from records.builder import build_batch
from records.record import Record
from wire.codec import decode_response, encode_request
from wire.messages import (
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
TIMEOUT_S, PAUSE_S = 10.0, 0.05
REPEATED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Fatal(Exception):
    """What an application cannot go on after."""


class NewProtocolProducer:
    def __init__(self, bootstrap: str, transactional_id: str, patience_s: float = 60.0) -> None:
        host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
        self._bootstrap = (host, int(port))
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._id = transactional_id
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._sequences: dict[tuple[str, int], int] = {}
        self.producer = (-1, -1)
        self.repeats = 0
        init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        found = self._until_done(lambda: self._coordinator(TRANSACTION, transactional_id), init, 5, _own_code)
        self.producer = (found.producer_id, found.producer_epoch)

    def write(self, topic: str, partition: int, value: bytes) -> None:
        place = topic, partition
        producer_id, epoch = self.producer
        sequence = self._sequences.get(place, 0)
        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, value)],
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        of_topic = ProduceRequest.TopicProduceData
        rows = [of_topic.PartitionProduceData(index=partition, records=bytes(batch))]
        request = ProduceRequest(
            transactional_id=self._id, acks=-1, timeout_ms=5_000,
            topic_data=[of_topic(name=topic, partition_data=rows)],
        )  # fmt: skip
        self._until_done(
            lambda: self._leader(topic, partition), request, 12,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )  # fmt: skip
        self._sequences[place] = sequence + 1

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        one = row.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self._id, group_id=group, producer_id=self.producer[0], producer_epoch=self.producer[1],
            topics=[row(name=topic, partitions=[one])],
        )  # fmt: skip
        self._until_done(
            lambda: self._coordinator(GROUP, group),
            request,
            5,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=self.producer[0], producer_epoch=self.producer[1], committed=commit
        )
        answer = self._until_done(lambda: self._coordinator(TRANSACTION, self._id), request, 5, _own_code)
        self.producer = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    def close(self) -> None:
        self._closed.set()
        for connection in self._sockets.values():
            connection.close()

    # requests ----------------------------------------------------------------------------------------------

    def _until_done(
        self,
        where: Callable[[], tuple[str, int] | None],
        request: Any,
        version: int,
        code_of: Callable[[Any], int],
    ) -> Any:
        deadline = time.monotonic() + self._patience_s
        code: object = "no answer"
        while time.monotonic() < deadline and not self._closed.is_set():
            address = where()
            answer = None if address is None else self._call(address, request, version)
            if answer is not None:
                code = known_error(code_of(answer))
                if code is ErrorCode.NONE:
                    return answer
                if code not in REPEATED:
                    raise Fatal(f"{type(request).__name__}: {code}")
            self.repeats += 1
            self._closed.wait(PAUSE_S)
        raise Fatal(f"{type(request).__name__}: {code} for {self._patience_s} s")

    def _coordinator(self, kind: int, key: str) -> tuple[str, int] | None:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        answer = self._call(self._bootstrap, request, 5)
        found = None if answer is None else answer.coordinators[0]
        return None if found is None or found.error_code else (found.host, found.port)

    def _leader(self, topic: str, partition: int) -> tuple[str, int] | None:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        answer = self._call(self._bootstrap, request, 9)
        if answer is None:
            return None
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        leaders: Mapping[int, int] = {row.partition_index: row.leader_id for row in answer.topics[0].partitions}
        return brokers.get(leaders.get(partition, -1))

    def _call(self, address: tuple[str, int], request: Any, version: int) -> Any:
        """None if the connection is lost."""
        try:
            connection = self._sockets.get(address)
            if connection is None:
                connection = self._sockets[address] = socket.create_connection(address, TIMEOUT_S)
            connection.sendall(encode_request(request, version, 1, "new-protocol"))
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            return decode_response(request.API_KEY, version, _exactly(connection, size))[1]
        except OSError:
            lost = self._sockets.pop(address, None)
            if lost is not None:
                lost.close()
            return None


def _own_code(answer: Any) -> int:
    return int(answer.error_code)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("closed")
        data += part
    return bytes(data)
