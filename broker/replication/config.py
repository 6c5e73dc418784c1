"""Settings of a broker's replication."""

from __future__ import annotations

from dataclasses import dataclass

from common.node_settings.connections import ConnectionSettings
from common.node_settings.replication import ReplicationSettings
from common.settings import same


@dataclass(slots=True, frozen=True)
class ReplicationConfig(ReplicationSettings):
    request_timeout_ms: int = same(ConnectionSettings, "request_timeout_ms")
