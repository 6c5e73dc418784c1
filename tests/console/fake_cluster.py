"""A cluster for the console that answers from a list, and a door into it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaError
from starlette.testclient import TestClient

from console.access.trouble import Trouble
from console.application import application
from console.login.credentials import Entry, Reachable
from console.options import ConsoleOptions
from console.web.guard import LOOPBACK
from records.batch import read_header, write_header
from tidelog.admin.library_client import check_encodes
from wire.messages import FetchResponse, ListOffsetsResponse, MetadataResponse

TOPIC_ID = uuid.UUID(int=7)
WRONG = "wrong"


class FakeClient:
    """`answers`: by the name of a request's class, a function of the request. All else is not answered."""

    def __init__(self, answers: Mapping[str, Callable[[Any], Any]] | None = None, methods: Any = None) -> None:
        self.answers = dict(answers or {})
        self.methods: dict[str, Any] = dict(methods or {})
        self.sent: list[Any] = []
        self.is_closed = False

    def send(self, request: Any, broker: int | None = None) -> Any:
        check_encodes(request)
        self.sent.append(request)
        if type(request).__name__ not in self.answers:
            raise KafkaConnectionError("no broker answers")
        return self.answers[type(request).__name__](request)

    def send_all(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        found: list[Any] = []
        for request, broker in requests:
            try:
                found.append(self.send(request, broker))
            except KafkaError as error:
                found.append(error)
        return found

    def close(self) -> None:
        self.is_closed = True

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("methods", {}):
            return self.__dict__["methods"][name]

        def absent(*_: Any, **__: Any) -> Any:
            raise KafkaConnectionError("no broker answers")

        return absent


class FakeDoor:
    """Takes every user with any password but one."""

    def __init__(self, client: FakeClient, mechanisms: Sequence[str] = ("PLAIN", "SCRAM-SHA-256")) -> None:
        self.client = client
        self._mechanisms = mechanisms
        self.entries: list[Entry] = []

    def offered(self) -> Sequence[str]:
        return self._mechanisms

    def enter(self, entry: Entry) -> Any:
        if entry.security.login is not None and entry.security.login.secret == WRONG:
            raise Trouble("cannot log in")
        self.entries.append(entry)
        return self.client


def visitor(client: FakeClient, door: FakeDoor | None = None, *, raises: bool = True, **options: Any) -> TestClient:
    """A browser without a session. `raises`: what the console fails at fails the test."""
    protocol = options.pop("protocol", "SASL_PLAINTEXT")
    where = Reachable("b0:9092", {"security.protocol": protocol}, options.pop("tenants", ""))
    schemas, now = options.pop("schemas", None), options.pop("now", time.monotonic)
    app = application(ConsoleOptions(where, hosts=LOOPBACK, **options), door or FakeDoor(client), schemas, now)
    return TestClient(app, base_url="http://localhost", follow_redirects=False, raise_server_exceptions=raises)


def door_of(browser: TestClient) -> str:
    """What the login form must send back."""
    return browser.get("/login").text.split('name="door" value="')[1].split('"')[0]


def log_in(browser: TestClient, **fields: str) -> Any:
    given = {"way": "PLAIN", "user": "ann", "password": "secret"} | fields
    return browser.post("/login", data={"door": given.get("door") or door_of(browser)} | given)


def token_of(browser: TestClient) -> str:
    return browser.get("/topics").text.split('name="token" value="')[1].split('"')[0]


def metadata(*names: str, partitions: int = 1) -> Callable[[Any], Any]:
    row = MetadataResponse.MetadataResponseTopic

    def one(name: str) -> Any:
        return row(
            error_code=0, name=name, topic_id=TOPIC_ID, is_internal=False,
            partitions=[
                row.MetadataResponsePartition(
                    error_code=0, partition_index=number, leader_id=1, leader_epoch=0, replica_nodes=[1, 2],
                    isr_nodes=[1], offline_replicas=[],
                )
                for number in range(partitions)
            ],
        )  # fmt: skip

    def answer(request: Any) -> Any:
        wanted = names if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(brokers=[], topics=[one(name) for name in wanted])

    return answer


def fetched(
    batches: Sequence[bytes], *, stable: int, aborted: Sequence[tuple[int, int]] = (), isolations: Any = None
) -> Callable[[Any], Any]:
    """A partition of these batches; readers of committed records get those below `stable`."""
    topic = FetchResponse.FetchableTopicResponse
    row = topic.PartitionData

    def answer(request: Any) -> Any:
        if isolations is not None:
            isolations.append(request.isolation_level)
        (asked,) = request.topics[0].partitions
        shown = [one for one in batches if read_header(one, 0).last_offset >= asked.fetch_offset]
        if request.isolation_level:
            shown = [one for one in shown if read_header(one, 0).base_offset < stable]
        end = read_header(batches[-1], 0).next_offset
        listed = [row.AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted]
        partition = row(
            partition_index=asked.partition, error_code=0, high_watermark=end, last_stable_offset=stable,
            log_start_offset=0, aborted_transactions=listed if request.isolation_level else None,
            records=b"".join(shown),
        )  # fmt: skip
        return FetchResponse(error_code=0, responses=[topic(topic="t", topic_id=TOPIC_ID, partitions=[partition])])

    return answer


def offsets(begin: int, end: int) -> Callable[[Any], Any]:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse

    def answer(request: Any) -> Any:
        rows = [
            topic.ListOffsetsPartitionResponse(
                partition_index=one.partition_index, error_code=0, timestamp=-1, leader_epoch=0,
                offset=begin if one.timestamp == -2 else end,
            )
            for one in request.topics[0].partitions
        ]  # fmt: skip
        return ListOffsetsResponse(topics=[topic(name=request.topics[0].name, partitions=rows)])

    return answer


def placed(batch: bytearray, base: int) -> bytes:
    """The same batch at another base offset, which the checksum does not cover."""
    header = read_header(batch, 0)
    write_header(batch, 0, header.stamped(base, 0))
    return bytes(batch)
