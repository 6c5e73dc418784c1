"""Settings of a broker's replication."""

from __future__ import annotations

from dataclasses import dataclass

from common.node_settings.connections import ConnectionSettings
from common.node_settings.replication import ReplicationSettings
from common.settings import same


@dataclass(slots=True, frozen=True)
class ReplicationConfig(ReplicationSettings):
    """`…_parts_at_once`: a client's request that names more partitions is served in slices."""

    request_timeout_ms: int = same(ConnectionSettings, "request_timeout_ms")
    produce_parts_at_once: int = 250
    fetch_parts_at_once: int = 500
