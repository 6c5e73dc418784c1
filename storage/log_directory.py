"""One broker's log directory: finds, recovers, makes and removes its partitions' logs."""

from collections.abc import Callable, Mapping

from common.ports import Ports
from storage.log_config import LogConfig
from storage.log_context import Audit, DirectoryConfig, FreeSpace
from storage.partition_log import PartitionLog

TopicPartition = tuple[str, int]


class LogDirectory:
    """`await open()`, then `await recover(...)`, then the rest; `await close_clean(epoch)` or `await close()`."""

    node_id: int
    cluster_id: str | None
    directory_id: bytes
    previous_broker_epoch: int  # of the run that stopped cleanly, -1 after an unclean stop
    on_failed: Callable[[str], None] | None  # called once, when the directory goes offline

    def __init__(self, ports: Ports, path: str, node_id: int, audit: Audit, config: DirectoryConfig) -> None:
        """`path` lies below the disk's root; "" is the root itself."""
        raise NotImplementedError

    async def open(self, cluster_id: str) -> None:
        """Read or make meta.properties, read checkpoints and the clean-stop marker, then remove the marker durably.

        Raises StorageFailure when the directory belongs to another cluster or node, or cannot be used.
        """
        raise NotImplementedError

    async def recover(
        self,
        config_of: Callable[[str], LogConfig],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load all logs, in a thread and in chunks; `progress(done, total)` runs on the loop."""
        raise NotImplementedError

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        raise NotImplementedError

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        raise NotImplementedError

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """Make the directory and its partition.metadata; their fsync is batched off the loop."""
        raise NotImplementedError

    def set_stray(self, log: PartitionLog) -> None:
        """Set a directory aside whose topic id is not the image's: renamed, never served."""
        raise NotImplementedError

    def delete_log(self, log: PartitionLog) -> None:
        """Rename it away now; its files go after file.delete.delay.ms."""
        raise NotImplementedError

    def high_watermark_checkpoint(self, topic: str, partition: int) -> int:
        """As the last run left it, 0 when unknown."""
        raise NotImplementedError

    async def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace replication-offset-checkpoint."""
        raise NotImplementedError

    @property
    def free_space_state(self) -> FreeSpace:
        raise NotImplementedError

    async def close_clean(self, broker_epoch: int) -> None:
        """Write, flush and checkpoint everything, then the clean-stop marker with `broker_epoch`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop without the marker: the next start recovers."""
        raise NotImplementedError
