"""Sends the events of a broker's journal to its partition of `__audit`: in order, repeated until acknowledged.

One task, which sleeps while there is nothing to send. When shipping begins it asks the leader for the journal's last
sequence in the topic, so no position is stored here. Events about this broker's own replicas of `__audit` are not
shipped: with a short retention each would cause the next.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from broker.audit.config import AuditConfig
from broker.audit.topic_host import AuditTopicHost, Entry
from broker.broker_link import BrokerLink
from broker.coordination.internal_topics import Ensure
from common.backoff import Retries
from common.errors import ErrorCode, MalformedFrame, ProtocolError, known_error
from common.lifecycle import duty, end_task
from kraft.image.metadata import MetadataImage
from kraft.links import Links
from kraft.topic_names import AUDIT_TOPIC
from records.audit_event import decode_audit_event
from storage.audit.audit_journal import AuditJournal
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import AppendAuditRequest

VERSION = 0
CONNECT_TIMEOUT_S = 1.0
ATTEMPTS_BEFORE_FEWER_REPLICAS = 8  # about a minute

_log = logging.getLogger(__name__)


class AuditShipper:
    """`shipped`: number of acknowledged events."""

    def __init__(
        self,
        node_id: int,
        journal: AuditJournal,
        image: Callable[[], MetadataImage],
        local: AuditTopicHost,
        topics: Ensure,
        links: Links,
        listener_name: str,
        rng: random.Random,
        config: AuditConfig,
    ) -> None:
        self.shipped = 0
        self._node_id = node_id
        self._journal = journal
        self._image = image
        self._local = local
        self._topics = topics
        self._link = BrokerLink(links, image, listener_name, CONNECT_TIMEOUT_S)
        self._retries = Retries(config.backoff, rng)
        self._config = config
        self._wake = asyncio.Event()
        self._next: int | None = None  # the next sequence to send; None: ask the leader
        self._task: asyncio.Task[None] | None = None

    @property
    def failures(self) -> int:
        """Number of failed attempts since the last success."""
        return self._retries.failures

    def start(self) -> None:
        """Call it when the broker knows the metadata."""
        self._journal.watch(self._wake.set)
        self._wake.set()  # for events left by an earlier run
        self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("audit-shipper"))

    async def stop(self) -> None:
        """Events that are not shipped yet are shipped after the next start."""
        self._journal.unwatch()
        await end_task(self._task)
        self._task = None
        self._link.drop()

    async def _run(self) -> None:
        config = self._config
        while True:
            await self._wake.wait()
            await asyncio.sleep(config.linger_ms / 1000)
            self._wake.clear()
            try:
                await self._ship_all()
                self._retries.succeeded()
            except (ProtocolError, ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame) as error:
                self._link.drop()
                self._next = None
                self._wake.set()
                if self.failures & (self.failures - 1) == 0:  # not each time
                    _log.info("the audit is not shipped yet", extra={"failures": self.failures, "cause": str(error)})
                await asyncio.sleep(self._retries.failed())
            except OSError as error:
                _log.warning("the audit journal cannot be read", extra={"cause": str(error)})
                return  # a disk failure, which the log directory reports

    async def _ship_all(self) -> None:
        journal, config = self._journal, self._config
        while True:
            taken = await journal.take(self._next or 0, config.batch_bytes)
            if not taken:
                return
            if self._next is None:
                self._next = await self._append([]) + 1
                continue
            entries = [Entry(*one) for one in taken if decode_audit_event(one[1]).topic != AUDIT_TOPIC]
            if entries:
                await self._append(entries)
                self.shipped += len(entries)
            self._next = taken[-1][0] + 1
            await journal.release(self._next)

    async def _append(self, entries: Sequence[Entry]) -> int:
        """The last sequence of this journal in the topic."""
        self._check_creatable()
        await self._topics.ensure(AUDIT_TOPIC)
        topic = self._image().topics.get(AUDIT_TOPIC)
        if topic is None or not topic.partitions:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = self._node_id % len(topic.partitions)
        leader = topic.partitions[index].leader
        incarnation = await self._journal.incarnation()
        if leader == self._node_id:
            return await self._local.append(index, self._node_id, incarnation, entries)
        if leader < 0:
            raise ProtocolError(ErrorCode.LEADER_NOT_AVAILABLE)
        request = AppendAuditRequest(
            partition_index=index,
            node_id=self._node_id,
            incarnation=incarnation,
            events=[AppendAuditRequest.AuditEntry(sequence=entry.sequence, event=entry.event) for entry in entries],
        )
        link = await self._link.to(leader)
        response = await link.call(request, VERSION, self._config.call_timeout_ms / 1000)
        if response.error_code != ErrorCode.NONE:
            raise ProtocolError(known_error(response.error_code))
        return response.last_sequence

    def _check_creatable(self) -> None:
        """The first events come when a cluster starts after a crash. `__audit` must not be created with few replicas
        because other brokers are still starting, so creation waits for them, but only for a limited time."""
        image = self._image()
        if image.topics.get(AUDIT_TOPIC) is None and self.failures < ATTEMPTS_BEFORE_FEWER_REPLICAS:
            missing = len(image.brokers) - len(image.unfenced_brokers())
            if missing:
                raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{missing} brokers are starting or down")
