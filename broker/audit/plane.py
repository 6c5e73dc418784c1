"""A broker's audit: the journal, shipping to `__audit`, the leaders of `__audit`, export to the object store."""

from __future__ import annotations

from collections.abc import Callable

from broker.audit.config import AuditConfig
from broker.audit.feeds import TopicNames, led_feeds
from broker.audit.shipper import AuditShipper
from broker.audit.topic_host import AuditTopicHost
from broker.coordination.internal_topics import Ensure
from broker.partitions.hosted import HostedPartitions
from broker.tier.plane import TierPlane
from common.identifiers import random_uuid
from common.metrics import Metrics
from common.ports import Ports
from kraft.links import Links
from storage.audit.audit_journal import JOURNAL_DIRECTORY, AuditJournal
from storage.audit.journal_writer import JournalWriter
from tiering.exports.audit_export import AuditExporter, AuditExporterServices, AuditWriter


def open_journal(
    ports: Ports, node_id: int, config: AuditConfig, passes: Callable[[str, OSError], bool]
) -> AuditJournal:
    """The journal reads or creates files at its first use, at the latest when shipping begins."""
    made = random_uuid(ports.random).hex()
    writer = JournalWriter(ports.disk, JOURNAL_DIRECTORY, node_id, made, config.journal_max_bytes)
    return AuditJournal(writer, ports.clock, passes)


class AuditPlane:
    """One per broker. `journal` is the audit trail of its log directory."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: AuditConfig,
        journal: AuditJournal,
        hosted: HostedPartitions,
        topics: Ensure,
        links: Links,
        listener_name: str,
    ) -> None:
        self.journal = journal
        self.host = AuditTopicHost(hosted, ports.clock)
        self.shipper = AuditShipper(
            node_id=node_id,
            journal=journal,
            image=lambda: hosted.image,
            local=self.host,
            topics=topics,
            links=links,
            listener_name=listener_name,
            rng=ports.random,
            config=config,
        )
        self.exporter: AuditExporter | None = None
        self._ports = ports
        self._config = config
        self._hosted = hosted

    def export_to(self, tier: TierPlane, interval_s: float) -> None:
        """Enable the export to an object store. Call it before `start`."""
        names = TopicNames(lambda: self._hosted.image)
        writer = AuditWriter(tier.store, tier.root, tier.guard, self._ports.clock, self._config.export_retention_ms)
        self.exporter = AuditExporter(
            AuditExporterServices(
                lambda: writer,
                lambda: led_feeds(self._hosted, names),
                self._ports.clock,
                self._ports.random,
                interval_s,
            )
        )

    def start(self) -> None:
        self.shipper.start()
        if self.exporter is not None:
            self.exporter.start()

    async def stop(self) -> None:
        """Call it before the object store and the log directory close; the log directory may still write to the
        journal."""
        if self.exporter is not None:
            await self.exporter.stop()
        await self.shipper.stop()

    async def close(self) -> None:
        """Call it after the log directory is closed."""
        await self.journal.close()

    def register(self, metrics: Metrics) -> None:
        journal, shipper = self.journal, self.shipper
        metrics.counter("tidelog_audit_events_total", lambda: journal.events)
        metrics.counter("tidelog_audit_events_shipped_total", lambda: shipper.shipped)
        metrics.counter("tidelog_audit_events_lost_total", lambda: journal.lost)
        metrics.gauge("tidelog_audit_ship_failures", lambda: shipper.failures)

        metrics.gauge(
            "tidelog_audit_export_trouble_since_timestamp_seconds",
            lambda: 0 if self.exporter is None else self.exporter.trouble.since_ms / 1000,
        )
