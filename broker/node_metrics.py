"""Metrics of a broker, read only when they are scraped."""

from __future__ import annotations

from typing import Protocol

from broker.coordinators import Coordinators
from broker.data_plane import DataPlane
from broker.dispatch import Dispatcher
from broker.membership import Membership
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from common.metrics import Metrics
from common.pacing import Pacer
from kraft.observers.observer import MetadataObserver
from storage.directory.log_directory import LogDirectory
from wire.server import Server


class Measured(Protocol):
    """The parts of a broker that metrics are read from."""

    data_plane: DataPlane
    logs: LogDirectory
    server: Server
    dispatcher: Dispatcher
    membership: Membership
    coordinators: Coordinators
    observer: MetadataObserver
    pacer: Pacer

    @property
    def partitions(self) -> HostedPartitions: ...


def register_metrics(metrics: Metrics, node: Measured) -> None:
    """Register metrics, named after Kafka's where Kafka has the metric."""
    partitions, plane = node.partitions, node.data_plane

    def in_doubt() -> set[Partition]:
        """Led partitions whose ISR is incomplete or may be: unsettled, or with a pending ISR change, except quiet
        ones."""
        return {*partitions.unsettled_partitions, *plane.isr_changes.partitions} - partitions.quiet_partitions.keys()

    metrics.gauge("tidelog_partitions", "Replicas on this broker.", lambda: len(partitions))
    metrics.gauge(
        "tidelog_leader_partitions",
        "Partitions that this broker leads.",
        lambda: len(partitions.led),
    )
    metrics.gauge(
        "tidelog_under_replicated_partitions",
        "Led partitions whose ISR lacks a replica.",
        lambda: (
            len(partitions.quiet_partitions)
            + sum(p.replica_set is not None and bool(p.replica_set.outside) for p in in_doubt())
        ),
    )
    metrics.gauge(
        "tidelog_under_min_isr_partitions",
        "Led partitions whose ISR is below min.insync.replicas.",
        lambda: (
            sum(partitions.quiet_partitions.values())
            + sum(p.replica_set is not None and p.replica_set.is_starved for p in in_doubt())
        ),
    )
    metrics.gauge("tidelog_metadata_offset", "The end of the metadata.", lambda: node.observer.image.offset)
    metrics.gauge(
        "tidelog_metadata_heard_seconds",
        "Seconds since a controller with a known leader last reported the end of the metadata.",
        lambda: node.observer.heard_s,
    )
    _register_replicas(metrics, node)
    metrics.gauge("tidelog_isr_changes_pending", "ISR changes not answered yet.", lambda: len(plane.isr_changes))
    metrics.gauge("tidelog_fetch_sessions", "Incremental fetch sessions.", lambda: len(plane.sessions))
    metrics.counter(
        "tidelog_fetch_session_evictions_total", "Fetch sessions evicted.", lambda: plane.sessions.evictions
    )
    _register_logs(metrics, node)
    register_connections(metrics, node.server)
    metrics.counter("tidelog_requests_total", "Requests handled.", lambda: node.dispatcher.requests)
    metrics.counter(
        "tidelog_long_requests_seconds_total",
        "Seconds that the event loop worked on clients' long requests.",
        lambda: node.pacer.clients_worked_s,
    )


def _register_replicas(metrics: Metrics, node: Measured) -> None:
    partitions, plane = node.partitions, node.data_plane
    metrics.gauge(
        "tidelog_replicas_without_leader",
        "Following replicas without a leader to fetch from.",
        lambda: plane.fetchers.lagging_count,
    )
    metrics.gauge(
        "tidelog_stray_logs",
        "Directories of logs that were set aside, as they are no known replica's. They never go by themselves.",
        lambda: node.logs.stray_count,
    )
    metrics.gauge(
        "tidelog_replicas_held_up",
        "Following replicas whose leader refuses their fetches, or sends what cannot be appended.",
        lambda: plane.fetchers.held_up_count,
    )
    metrics.gauge(
        "tidelog_replicas_without_room",
        "Replicas whose logs could not be made, because the disk is full or no file can be opened.",
        lambda: len(partitions.roomless),
    )
    metrics.gauge(
        "tidelog_coordinator_standby_bytes",
        "Memory for the offsets of groups that other brokers coordinate, so that this one could take over at once.",
        lambda: node.coordinators.runtime.standby_bytes,
    )
    metrics.gauge(
        "tidelog_lacks_room",
        "1 while the disk is too full to append, so that others lead where they have room.",
        lambda: node.membership.room.is_lacking,
    )
    metrics.gauge(
        "tidelog_lacks_clients",
        "1 while neither clients nor other brokers' probes reach this broker, although its heartbeats are answered.",
        lambda: node.membership.network.is_silent,
    )
    metrics.counter(
        "tidelog_replication_received_bytes_total",
        "Bytes of leaders' answers to this broker's fetches.",
        lambda: plane.fetchers.received_bytes,
    )


def _register_logs(metrics: Metrics, node: Measured) -> None:
    plane, logs = node.data_plane, node.logs.context
    metrics.gauge("tidelog_open_files", "Open segment files.", lambda: node.logs.open_file_count)
    metrics.gauge(
        "tidelog_pinned_files", "Segment files in replies that were not sent yet.", lambda: logs.open_files.pinned
    )
    metrics.counter("tidelog_files_opened_total", "Segment files opened.", lambda: logs.open_files.opened_count)
    metrics.counter("tidelog_log_flushes_total", "Logs brought to the device.", lambda: logs.flusher.flush_count)
    metrics.counter("tidelog_disk_slowdowns_total", "How often the disk became slow.", lambda: logs.writer.slow_count)
    metrics.gauge(
        "tidelog_uncleanable_partitions",
        "Logs that are not compacted any more because they are damaged.",
        lambda: plane.duties.uncleanable_count,
    )
    metrics.gauge(
        "tidelog_producers",
        "Idempotent producers that this broker remembers, over all partitions.",
        lambda: logs.producers.count,
    )
    metrics.counter(
        "tidelog_producers_forgotten_total",
        "Producers that were forgotten because of tidelog.producers.max.",
        lambda: logs.producers.forgotten_count,
    )
    metrics.gauge("tidelog_unwritten_bytes", "Bytes that wait for a slow disk.", lambda: node.logs.unwritten_bytes)


def register_connections(metrics: Metrics, server: Server) -> None:
    """Register metrics of any node with listeners."""
    metrics.gauge("tidelog_connections", "Open connections.", lambda: len(server.connections))
    metrics.gauge(
        "tidelog_connection_openings",
        "Connections whose TLS handshake or PROXY header is under way.",
        lambda: server.openings,
    )
    metrics.family(
        "tidelog_connections_refused_total",
        "counter",
        "Connections that ended before their first request, by cause.",
        lambda: [({"cause": cause}, float(count)) for cause, count in server.failures.counts.items()],
    )
    metrics.family(
        "tidelog_certificate_expires_seconds",
        "gauge",
        "When the certificate of a listener ends, in seconds since 1970.",
        lambda: [({"listener": name}, ends_ms / 1000) for name, ends_ms in server.certificate_ends().items()],
    )
