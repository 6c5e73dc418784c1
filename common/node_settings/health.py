"""When a node counts as sick, and what it does then."""

from dataclasses import dataclass

from common.settings import setting


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Settings of the watches over a node's own storage and network."""

    # fmt: off
    storage_enable: bool = setting("tidelog.health.storage.enable", "boolean", True,
        "Whether a node whose storage is stuck closes its connections and ends with status 70. If not, it only logs "
        "that and shows tidelog_storage_stuck_seconds.")
    storage_stuck_ms: int = setting("tidelog.health.storage.stuck.ms", "int", 10_000,
        "How long a write or flush of a log, or a turn of the event loop that waits, may take before the storage "
        "counts as stuck.", 100)
    network_silence_ms: int = setting("tidelog.health.network.silence.ms", "int", 30_000,
        "How long neither clients nor other brokers' probes may reach a broker, whose heartbeats are answered, before "
        "it reports that; 0: it neither probes others nor reports.", 0)
    # fmt: on
