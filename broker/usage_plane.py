"""What clients use of a broker: how loaded it is, the reports of it to the controller, and the pressure on tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.config import BrokerConfig
from broker.data_plane import Machinery
from broker.loop_watch import LoopWatch
from broker.partitions.hosted import HostedPartitions
from broker.quotas.pressure import BrokerCounters, BrokerPressure
from broker.quotas.tenant_bounds import TenantBounds
from broker.quotas.tenant_shares import TenantShares
from broker.security.usage import UsageBook
from broker.usage_report import Machine, UsageReporter
from common.metrics import Metrics
from common.ports import Ports
from kraft.image.cells import BANDWIDTH_PER_BROKER, DEFAULT_CELL
from kraft.image.metadata import MetadataImage
from kraft.observers.controller_channel import ControllerCalls
from storage.audit.audit_trail import AuditTrail
from storage.directory.log_directory import LogDirectory


class UsagePlane:
    """`queues` return the seconds that requests have waited so far, each in one queue beside the event loop."""

    def __init__(
        self,
        *,
        ports: Ports,
        config: BrokerConfig,
        machinery: Machinery,
        book: UsageBook,
        bounds: TenantBounds,
        shares: TenantShares,
        hosted: HostedPartitions,
        logs: LogDirectory,
        channel: ControllerCalls,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        queues: Sequence[Callable[[], float]],
        trail: AuditTrail,
    ) -> None:
        now, meter, pool = ports.clock.monotonic, machinery.tick.meter, machinery.pool
        self._config = config
        self._image = image
        self.load = LoopWatch(meter, now, ports.thread_cpu_s, queues)
        self.reports = UsageReporter(
            book=book,
            hosted=hosted,
            channel=channel,
            machine=Machine(
                now, ports.cpu_s, lambda: pool.moved, lambda: (logs.free_bytes, logs.size_bytes), self.load.look
            ),
            pacer=machinery.pacer,
            broker_epoch=broker_epoch,
            interval_s=config.sessions.usage_report_interval_ms / 1000,
            shares=shares,
        )

        def counters() -> BrokerCounters:
            jobs, wait_s = meter.waits
            return BrokerCounters(jobs, wait_s + sum(queue() for queue in queues), pool.moved)

        self.pressure = BrokerPressure(
            book=book,
            bounds=bounds,
            shares=shares,
            settings=config.pressure,
            counters=counters,
            bandwidth=self._bandwidth,
            now=now,
            pacer=machinery.pacer,
            trail=trail,
        )

    def start(self) -> None:
        self.reports.start()
        self.pressure.start()

    async def stop(self) -> None:
        await self.pressure.stop()
        await self.reports.stop()

    def register(self, metrics: Metrics) -> None:
        self.load.register(metrics)
        self.reports.register(metrics)
        self.pressure.register(metrics)

    def _bandwidth(self) -> int:
        defaults = self._config.tenants
        cell = self._image().cells.get(self._config.cell or DEFAULT_CELL)
        own = None if cell is None else cell.limits.get(BANDWIDTH_PER_BROKER)
        return defaults.cell_bandwidth_per_broker if own is None else own
