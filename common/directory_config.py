"""The limits of one log directory. They stand below `storage`, which a controller that reads settings must not load."""

from dataclasses import dataclass

from common.node_settings.topics import BrokerLogSettings


@dataclass(slots=True, frozen=True)
class DirectoryConfig(BrokerLogSettings):
    """Limits of one log directory; sizes in bytes, times as their suffix says."""

    upkeep_interval_ms: int = 1_000  # how often free space, flush.ms and deleted files are looked at
    recovery_chunk_logs: int = 64  # logs per turn of a recovery thread
    replay_bytes_max: int = 128 << 10  # a cut reads so much on the loop to know its producers; more in a thread
