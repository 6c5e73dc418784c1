"""The limits of one log directory. Not in `storage`, because a controller reads settings and must not load it."""

from dataclasses import dataclass

from common.node_settings.topics import BrokerLogSettings


@dataclass(slots=True, frozen=True)
class DirectoryConfig(BrokerLogSettings):
    """Limits of one log directory."""

    upkeep_interval_ms: int = 1_000  # between checks of free space, flush.ms and deleted files
    recovery_chunk_logs: int = 64  # logs per turn of a recovery thread
    replay_bytes_max: int = 128 << 10  # a truncation that rebuilds producers from more bytes reads in a thread
