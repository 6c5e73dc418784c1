"""Requests of the tier's commands: to brokers, over their clients' listeners, and to the object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from common.identifiers import parse_uuid
from object_store.blocking import BlockingStore
from object_store.errors import NoStore, ObjectMissing, StoreError
from object_store.limits import StoreLimits
from object_store.uri import InvalidStoreUri, parse_uri
from tidelog.admin.admin_client import error_text, outcome_text
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import Place
from tidelog.output import EXIT_USAGE, fail
from tidelog.tier.waiting import reported_wait
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import TieredSegment
from tiering.shard.description import BrokerTier, StoreStatus, decode_broker, decode_page
from tiering.upkeep.checking import State
from wire.messages import DescribeTierRequest, schema_uuid

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

NOTHING = bytes(16)


class LiveTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int


@dataclass(slots=True)
class Answers:
    """The brokers' answers. `silent`: brokers without an answer; `reason`: why the last of them has none."""

    brokers: list[BrokerTier]
    silent: list[int]
    reason: str = ""

    @property
    def store(self) -> StoreStatus | None:
        """The store's state at the broker with the longest trouble; None if no broker has a tier."""
        stores = [broker.store for broker in self.brokers if broker.store is not None]
        return min(stores, key=lambda store: (store.answers, store.stale is None, store.since_ms), default=None)

    @property
    def cluster_id(self) -> str:
        return next((broker.cluster_id for broker in self.brokers), "")


def ask_brokers(client: AdminClient) -> Answers:
    """Every live broker's answer. Ends the command if there is none."""
    try:
        return reported(client)
    except Refused as error:
        fail(str(error))


def reported(client: AdminClient) -> Answers:
    """Every live broker's answer. Raises Refused, with the reason, if there is none, and KafkaError if the brokers
    cannot be listed."""
    answers = answers_of(client)
    if not answers.brokers:
        raise Refused(f"no broker reports its tier: {answers.reason or 'all are fenced'}")
    return answers


def blocked_bytes(client: AdminClient) -> dict[Place, int]:
    """Bytes of closed segments that the tier does not hold yet, of each tiered partition. Raises as `reported`."""
    return {
        Place(led.topic, led.partition): led.copy_lag_bytes
        for broker in reported(client).brokers
        for led in broker.partitions
    }


def answers_of(client: AdminClient) -> Answers:
    """Every live broker's answer, of which there may be none. Raises KafkaError if the brokers cannot be listed."""
    from kafka.errors import KafkaError  # noqa: PLC0415

    found, silent, reason = list[BrokerTier](), list[int](), ""
    for row in sorted(client.describe_cluster()["brokers"], key=lambda row: int(row["broker_id"])):
        broker = row["broker_id"]
        if row["is_fenced"]:
            silent.append(broker)
            continue
        try:
            response = client.send(DescribeTierRequest(topic_id=schema_uuid(NOTHING), partition_index=-1), broker)
            refusal = error_text({"error_code": response.error_code, "error_message": response.error_message})
            if refusal is None:
                found.append(decode_broker(response.description))
                continue
        except KafkaError as error:
            refusal = outcome_text(str(error))
        except ValueError as error:
            refusal = str(error)
        silent.append(broker)
        reason = refusal
    return Answers(found, silent, reason)


def read_state(client: AdminClient, topic_id: bytes, partition: int) -> State | str:
    """A partition's state in `__tier_state`, or the reason why it is unknown."""
    from kafka.errors import KafkaError  # noqa: PLC0415

    segments: list[TieredSegment] = []
    after = -1
    while True:
        request = DescribeTierRequest(
            topic_id=schema_uuid(topic_id), partition_index=partition, after_base_offset=after
        )
        try:
            response = client.send(request)
        except KafkaError as error:
            return str(error)
        if response.error_code:
            return response.error_message or f"error {response.error_code}"
        page = decode_page(response.description)
        segments += page.segments
        if not page.more:
            return State(
                page.known,
                page.log_start_offset,
                page.tier_end_offset,
                page.dropped_ms,
                page.state_offset,
                segments,
            )
        after = segments[-1].base_offset


def live_topics(client: AdminClient) -> dict[str, LiveTopic]:
    return {
        row["name"]: LiveTopic(row["name"], uuid.UUID(str(row["topic_id"])).bytes, len(row["partitions"]))
        for row in client.describe_topics()
    }


def split_name(text: str) -> tuple[str, bytes | None]:
    """TOPIC or TOPIC@ID, the id as 32 hex digits or in Kafka's form."""
    name, _, id_text = text.partition("@")
    if not id_text:
        return name, None
    try:
        return name, bytes.fromhex(id_text) if len(id_text) == 32 else parse_uuid(id_text)
    except ValueError:
        fail(f"{id_text!r} is no topic id: 32 hex digits, or the form that `tidelog topics` shows", EXIT_USAGE)


@contextmanager
def opened_store(answers: Answers, uri: str | None) -> Iterator[tuple[BlockingStore, TierRoot]]:
    """The store that the brokers use, or the one at `uri`. StoreErrors inside the block end the command."""
    try:
        with BlockingStore(_place(answers, uri)) as opened:
            yield opened, TierRoot(answers.cluster_id)
    except InvalidStoreUri as error:
        fail(f"--tier: {error}", EXIT_USAGE)
    except StoreError as error:
        if isinstance(error, NoStore) and uri is not None:
            fail(f"--tier: {error.store}: {error.reason}", EXIT_USAGE)
        fail(f"the object store does not answer as it should: {error}")


def store_trouble(answers: Answers, uri: str | None, say: Callable[[str], None]) -> str:
    """Why the store does not answer now, "" if it does. Otherwise as `opened_store`. Gives up on a hanging store after
    more than a minute; `say` reports the wait."""
    limits = StoreLimits()
    try:
        place = parse_uri(_place(answers, uri))
        limit_s = 2 * limits.file_timeout_s if place.kind == "file" else limits.s3_call_s  # it is opened, then asked
        with (
            reported_wait(say, f"the object store {place.name} to answer", limit_s),
            BlockingStore(place, limits) as opened,
        ):
            opened.head(TierRoot(answers.cluster_id).cluster_file)
    except InvalidStoreUri as error:
        fail(f"--tier: {error}", EXIT_USAGE)
    except ObjectMissing:
        return ""
    except StoreError as error:
        return str(error)
    return ""


def _place(answers: Answers, uri: str | None) -> str:
    if uri is not None:
        return uri
    if answers.store is None:
        fail("this cluster has no tier: tidelog.tier.uri is not set")
    return answers.store.uri
