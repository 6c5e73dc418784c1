"""A controller of a cluster with a tier. While active, it exports the metadata and its audit to the object store, and
starts scheduled Spark jobs."""

from __future__ import annotations

from broker.tier.opening import LateStore
from common.metrics import Metrics
from common.ports import Ports
from kraft.audit.metadata_export import metadata_events
from kraft.controller.node import ControllerNode
from kraft.controller.tier_configs import REMOTE_STORAGE
from object_store.opening import open_store
from object_store.uri import parse_uri
from tidelog.configuration.job_schedule import parse_schedule
from tidelog.nodes.job_scheduler import JobScheduler
from tidelog.nodes.metadata_feed import MetadataFeed
from tiering.bucket.cluster_file import ClusterGuard
from tiering.bucket.keys import TierRoot
from tiering.bucket.store_seen import StoreSeen
from tiering.exports.audit_export import FOR_EVER, AuditExporter, AuditExporterServices, AuditWriter
from tiering.exports.exports import METADATA, Export, Exporter, ExporterServices, ExportWriter, ReadyExport

INCARNATIONS_KEPT = 2


class ExportingController:
    """A `ControllerNode` with its exports; runs as one node. The store is opened for the first write."""

    def __init__(
        self,
        ports: Ports,
        node: ControllerNode,
        uri: str,
        interval_s: float,
        schedule: str = "",
        audit_keep_ms: int = FOR_EVER,
    ) -> None:
        """`schedule`: parsed by `tidelog.configuration.job_schedule`; `audit_keep_ms`: how long exported events are
        kept."""
        self.node = node
        self.metrics: Metrics = node.metrics
        self._ports = ports
        self._store = LateStore(uri, parse_uri(uri).name, open_store, ports.clock)
        self._writer: ExportWriter | None = None
        self._exporter = Exporter(
            ExporterServices(self._current_writer, self._exports, ports.clock, ports.random, interval_s, self._forget)
        )
        self._feed = MetadataFeed(node.machine)
        self._audit_keep_ms = audit_keep_ms
        self._audit_writer: AuditWriter | None = None
        self._audit_exporter = AuditExporter(
            AuditExporterServices(self._current_audit_writer, self._feeds, ports.clock, ports.random, interval_s)
        )
        self._uri = uri
        self._scheduler = JobScheduler(
            parse_schedule(schedule), self._job_options, lambda: self.node.driver.is_active, ports.clock
        )
        node.metrics.counter("tidelog_controller_spark_jobs_failed_total", lambda: self._scheduler.failed)
        node.metrics.gauge(
            "tidelog_controller_audit_export_trouble_since_timestamp_seconds",
            lambda: self._audit_exporter.trouble.since_ms / 1000,
        )
        node.metrics.gauge(
            "tidelog_controller_export_trouble_since_timestamp_seconds", lambda: self._exporter.trouble.since_ms / 1000
        )

    async def start(self) -> None:
        await self.node.start()
        self._feed.note()
        self._exporter.start()
        self._audit_exporter.start()
        self._scheduler.start()

    async def stop(self) -> None:
        await self._scheduler.stop()
        await self._exporter.stop()
        await self._audit_exporter.stop()
        await self._store.close()
        await self.node.stop()

    async def wait_ready(self) -> None:
        await self.node.wait_ready()

    def ready_problem(self) -> str | None:
        return self.node.ready_problem()

    def health_problem(self) -> str | None:
        return self.node.health_problem()

    def _current_writer(self) -> ExportWriter | None:
        cluster_id = self.node.image.cluster_id
        if self._writer is None and cluster_id is not None:
            root = TierRoot(cluster_id)
            own, seen = lambda: self.node.image.incarnation, StoreSeen(self._ports.disk)
            guard = ClusterGuard(self._store, root, own, self._ports.clock, seen=seen, begins=self._has_no_tier)
            self._writer = ExportWriter(self._store, root, guard, self._ports.clock)
        return self._writer

    def _has_no_tier(self) -> bool:
        """Whether no topic is tiered. If some are, only brokers create `cluster.json` in an empty store, because they
        know whether it is the earlier one."""
        image = self.node.image
        tiered = (image.configs.topic(name).get(REMOTE_STORAGE, "") for name in image.topics.by_name)
        return all(text.strip().lower() != "true" for text in tiered)

    def _job_options(self) -> list[str] | None:
        """The options for the tier; None while the cluster has no id. A job's own options come later and override
        them."""
        cluster_id = self.node.image.cluster_id
        return None if cluster_id is None else ["--tier", self._uri, "--cluster-id", cluster_id]

    def _current_audit_writer(self) -> AuditWriter | None:
        writer = self._current_writer()
        if self._audit_writer is None and writer is not None:
            root = TierRoot(self.node.image.cluster_id or "")
            self._audit_writer = AuditWriter(self._store, root, writer.guard, self._ports.clock, self._audit_keep_ms)
        return self._audit_writer

    def _feeds(self) -> list[MetadataFeed]:
        self._feed.note()
        return [self._feed] if self.node.driver.is_active else []

    async def _exports(self) -> list[Export]:
        if not self.node.driver.is_active:
            return []
        image = self.node.image
        return [ReadyExport(METADATA, 0, image.offset, image.offset, lambda: metadata_events(image))]

    async def _forget(self, writer: ExportWriter) -> None:
        await writer.forget_incarnations_before(self.node.image.incarnation - INCARNATIONS_KEPT + 1)
