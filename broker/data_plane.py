"""The part of a broker that stores, replicates and serves records.

It follows the metadata images that it is given, and calls the controller through the channel that it is given;
`broker.node` provides both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from broker.config import BrokerConfig
from broker.coordination.producer_ids import ProducerIds
from broker.deadlines import Deadlines
from broker.handlers.fetch import FetchHandler, FetchServices
from broker.handlers.fetch_answers import FetchAnswers
from broker.handlers.produce import ProduceHandler, ProduceServices
from broker.handlers.record_inspection import RecordInspection
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.duties import REVIEW_S, Duties
from broker.partitions.hosted import HostedPartitions
from broker.partitions.leader_hints import LeaderHints
from broker.partitions.log_settings import LogSettings
from broker.partitions.partition import Partition
from broker.replication.fetch_reading import FetchReader
from broker.replication.fetch_sessions import FetchSessionCache
from broker.replication.fetchers import Fetchers
from broker.replication.isr_changes import IsrChanges
from broker.replication.leader_link import LinkServices
from broker.requests.context import RequestChain
from broker.telemetry.trace_export import TraceExport
from broker.tenancy.scope import ProxyAddress
from common.pacing import Pacer
from common.ports import Ports
from kraft.observers.controller_channel import ControllerCalls
from storage.directory.log_directory import LogDirectory
from storage.disk.directory_health import FreeSpace
from wire.buffers import BufferPool
from wire.tick import Tick
from wire.watch import Watch

_PLENTY = FreeSpace.PLENTY
DISK_PAUSE_MS = 200  # throttle time of producers after each request while the disk fills up


class Machinery(Struct, frozen=True):
    """Shared by all connections of a node; created while its event loop runs."""

    ports: Ports
    tick: Tick
    pool: BufferPool
    watch: Watch
    pacer: Pacer


class DataPlane:
    """Created while the event loop runs. Call `start` when the first image is applied; `stop` leaves the logs open."""

    def __init__(
        self,
        config: BrokerConfig,
        machinery: Machinery,
        logs: LogDirectory,
        channel: ControllerCalls,
        broker_epoch: Callable[[], int],
        chain: RequestChain,
    ) -> None:
        ports, replication, duties = machinery.ports, config.replication, config.duties
        loop = asyncio.get_running_loop()
        lag_max_s = replication.replica_lag_time_max_ms / 1000
        self._logs, self._has_started = logs, False
        self.settings = LogSettings(config.node_id, config.node_settings)
        self.isr_changes = IsrChanges(
            channel, config.node_id, broker_epoch, lambda: self.partitions.image, ports.random
        )
        self.partitions = HostedPartitions(
            node_id=config.node_id,
            logs=logs,
            settings=self.settings,
            now=loop.time,
            replication=replication,
            pacer=machinery.pacer,
            isr_changes=self.isr_changes,
        )
        self.deadlines = Deadlines()
        self.sessions = FetchSessionCache(
            replication.max_incremental_fetch_session_cache_slots,
            ports.random,
            lambda work: machinery.pacer.start(work, "fetch sessions", own=True),
        )
        self.inspection = RecordInspection(
            duties.recompressions_at_once_max, duties.recompression_bytes_queued_max, config.topics.inflated_bytes_max
        )
        self.transactions = TransactionVerification(config.verification)
        self.traces = TraceExport(ports, config.monitoring, config.node_id)
        hints = LeaderHints(self.partitions, ProxyAddress(config.proxy_domain, config.proxy_port))
        self.produce = ProduceHandler(
            ProduceServices(
                hosted=self.partitions,
                hints=hints,
                inspection=self.inspection,
                transactions=self.transactions,
                deadlines=self.deadlines,
                throttle=chain.throttle,
                clock=ports.clock,
                meter=machinery.tick.meter,
                disk_pause_ms=self._disk_pause,
                parts_at_once=replication.produce_parts_at_once,
                tracer=self.traces.tracer,
            )
        )
        self.fetch = FetchHandler(self._fetch_services(config, machinery, hints, chain))
        self.fetchers = Fetchers(
            self._link_services(config, machinery, broker_epoch), self.partitions, config.internal_listener.name
        )
        self.partitions.set_fetchers(self.fetchers)
        self.producer_ids = ProducerIds(channel, config.node_id, broker_epoch)
        self.duties = Duties(
            hosted=self.partitions,
            logs=logs,
            clock=ports.clock,
            config=duties,
            high_watermark_checkpoint_s=replication.replica_high_watermark_checkpoint_interval_ms / 1000,
            review_s=min(REVIEW_S, lag_max_s / 2),
            inflated_bytes_max=config.topics.inflated_bytes_max,
            lag_max_s=lag_max_s,
            pacer=machinery.pacer,
        )

    def _fetch_services(
        self, config: BrokerConfig, machinery: Machinery, hints: LeaderHints, chain: RequestChain
    ) -> FetchServices:
        return FetchServices(
            hosted=self.partitions,
            answers=FetchAnswers(chain.throttle, hints, config.replication.fetch_max_bytes),
            sessions=self.sessions,
            reader=FetchReader(self.partitions, hints, config.replication.rack_aware_reads),
            deadlines=self.deadlines,
            tick=machinery.tick,
            open_files=self._logs.context.open_files,
            now=machinery.ports.clock.monotonic,
            remote_wait_ms=config.tier_reads.remote_fetch_max_wait_ms,
            parts_at_once=config.replication.fetch_parts_at_once,
        )

    def _link_services(
        self, config: BrokerConfig, machinery: Machinery, broker_epoch: Callable[[], int]
    ) -> LinkServices:
        return LinkServices(
            ports=machinery.ports,
            tick=machinery.tick,
            pool=machinery.pool,
            watch=machinery.watch,
            node_id=config.node_id,
            secret=config.secret,
            cluster=config.cluster_id,
            config=config.replication,
            broker_epoch=broker_epoch,
            start_from_tier=self._start_from_tier,
            drop_erased=self._drop_erased,
        )

    def start(self) -> None:
        """Call it when all replicas have their roles."""
        self._has_started = True
        self.isr_changes.start()
        self.duties.start()
        self.traces.start()

    async def stop(self) -> None:
        """Stop all duties and fetches, and checkpoint the high watermarks."""
        self.partitions.stop()
        await self.traces.stop()
        await self.duties.stop()
        await self.fetchers.stop()
        await self.isr_changes.stop()
        await self.producer_ids.stop()
        await self.inspection.close()
        self.transactions.stop()
        self.sessions.close()
        self.deadlines.close()
        # otherwise the checkpoint would lose replicas that are not hosted yet
        if self._logs.offline is None and self._has_started:
            await self.duties.checkpoint_high_watermarks()

    def _start_from_tier(self, partition: Partition) -> None:
        if self.partitions.tier is not None:
            self.partitions.tier.start_from_tier(partition)

    def _drop_erased(self, partition: Partition) -> None:
        if self.partitions.tier is not None:
            self.partitions.tier.drop_erased(partition)

    def _disk_pause(self) -> int:
        return 0 if self._logs.free_space_state is _PLENTY else DISK_PAUSE_MS
