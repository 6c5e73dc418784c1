"""A broker's reads from the tier: limits, the cache of chunks on the local disk, metrics."""

from __future__ import annotations

from broker.replication.cold_reading import ColdReading, TierViews
from common.metrics import Metrics
from common.node_settings.tier import TierReads
from common.ports import Ports
from object_store.store import ObjectStore
from tiering.bucket.keys import TierRoot
from tiering.reading.chunk_cache import CacheLimits
from tiering.reading.downloads import DownloadLimits
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import IndexLimits
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits

CACHED_PER_DOWNLOAD_MIN = 4


def read_limits(reads: TierReads, free_bytes_min: int) -> RemoteReadLimits:
    """The settings as limits. `free_bytes_min`: producers are throttled below this; the cache never takes disk space
    below it.

    If the cache holds few chunks, few are downloaded at a time, because otherwise they would evict each other unread.
    """
    places = max(reads.tier_cache_bytes // (CACHED_PER_DOWNLOAD_MIN * reads.tier_chunk_bytes), 1)
    return RemoteReadLimits(
        DownloadLimits(min(reads.tier_read_concurrency, places), reads.tier_read_memory_bytes),
        CacheLimits(reads.tier_cache_bytes, reads.tier_cache_open_files_max, free_bytes_min),
        IndexLimits(reads.tier_index_bytes, reads.tier_chunk_bytes),
        PrefetchLimits(
            min(reads.tier_prefetch_bytes, reads.tier_cache_bytes // 4),
            reads.tier_cache_bytes // 2,
            min(reads.tier_chunk_bytes, reads.tier_prefetch_bytes),
        ),
    )


class ColdPlane:
    """One per broker with a tier; created while the event loop runs."""

    def __init__(
        self,
        ports: Ports,
        reads: TierReads,
        free_bytes_min: int,
        store: ObjectStore,
        root: TierRoot,
        views: TierViews,
    ) -> None:
        self.remote = RemoteReader(store, ports.disk, read_limits(reads, free_bytes_min))
        self.reading = ColdReading(views, root, self.remote)

    async def start(self) -> None:
        """Empty the cache of an earlier run. Raises OSError."""
        await self.remote.open()

    async def stop(self) -> None:
        """Call it after the connections are closed, because they may still send from the cache."""
        await self.remote.stop()

    def register(self, metrics: Metrics) -> None:
        """Register metrics, named after Kafka's RemoteFetch… metrics."""
        cache, downloads = self.remote.cache, self.remote.downloads
        metrics.counter("tidelog_tier_fetched_bytes_total", lambda: self.remote.read_bytes_total)
        metrics.counter("tidelog_tier_downloaded_bytes_total", lambda: downloads.bytes_total)
        metrics.counter("tidelog_tier_downloads_total", lambda: downloads.finished_total)
        metrics.counter("tidelog_tier_download_failures_total", lambda: downloads.failed_total)
        metrics.gauge("tidelog_tier_downloads_running", lambda: downloads.running)
        metrics.gauge("tidelog_tier_downloads_queued", lambda: downloads.queued)
        metrics.gauge("tidelog_tier_reads_waiting", lambda: downloads.awaited)
        metrics.gauge("tidelog_tier_cache_bytes", lambda: cache.bytes_used)
        metrics.counter("tidelog_tier_cache_evictions_total", lambda: cache.evicted_total)
        metrics.gauge("tidelog_tier_cache_open_files", lambda: cache.open_count)
        metrics.gauge("tidelog_tier_index_bytes", lambda: self.remote.indexes.memory_bytes)
        metrics.gauge("tidelog_tier_readers", lambda: len(self.remote.sequences))
