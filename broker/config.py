"""What one broker runs with: plain values, Apache Kafka's defaults. The command maps settings onto them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from broker.audit.config import AuditConfig
from broker.security.config import SecurityConfig
from broker.tier.config import TierConfig
from common.ports import Address
from wire.connection_limits import ConnectionLimits
from wire.listeners import UNBOUNDED, ProxyForm, SecurityProtocol
from wire.opening import OPENINGS_MAX
from wire.server import ServerLimits
from wire.tls import TlsConfig
from wire.violation_log import LINES_MAX

KIB = 1 << 10
MIB = 1 << 20


@dataclass(slots=True, frozen=True)
class Listen:
    """One listener. `kind` is "operator", "tenant" or "internal"; `advertised` is what clients are told. `tls` belongs
    to protocols with TLS; what follows it is `wire.listeners.ListenerConfig`'s."""

    name: str
    address: Address
    advertised: Address
    kind: str = "operator"
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsConfig | None = None
    proxies: ProxyForm = ProxyForm.NONE
    proxy_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    connections_max: int = UNBOUNDED
    creation_rate: int = UNBOUNDED


@dataclass(slots=True, frozen=True)
class ReplicationConfig:
    """Times in milliseconds, sizes in bytes; the names are Kafka's settings with underscores."""

    replica_lag_time_max_ms: int = 30_000
    replica_fetch_max_bytes: int = MIB
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_response_max_bytes: int = 10 * MIB
    replica_fetch_backoff_ms: int = 200
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    rack_aware_reads: bool = True  # replica.selector.class
    request_timeout_ms: int = 30_000


@dataclass(slots=True, frozen=True)
class RequestLimits:
    """What bounds the memory that clients can ask for."""

    socket_request_max_bytes: int = 100 * MIB
    queued_max_request_bytes: int = 256 * MIB
    connection_request_bytes_max: int = 128 * MIB
    connection_requests_max: int = 128
    connection_reply_bytes_max: int = 64 * MIB
    answer_bytes_max: int = 128 * MIB
    metadata_cache_bytes_max: int = 64 * MIB
    reply_bytes_max: int = 512 * MIB
    connection_stall_ms: int = 30_000
    connections_max_idle_ms: int = 600_000
    max_connections: int = UNBOUNDED
    max_connections_per_ip: int = UNBOUNDED
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    max_connection_creation_rate: int = UNBOUNDED
    connection_openings_max: int = OPENINGS_MAX
    connection_opening_ms: int = 10_000
    certificates_interval_ms: int = 5_000
    peer_log_lines_max: int = LINES_MAX
    fetch_max_bytes: int = 55 * MIB
    max_incremental_fetch_session_cache_slots: int = 1_000
    inflated_bytes_max: int = 64 * MIB
    recompressions_at_once_max: int = 2
    recompression_bytes_queued_max: int = 64 * MIB


def server_limits(limits: RequestLimits) -> ServerLimits:
    """What a node's listeners are bounded by, a broker's and a controller's alike."""
    return ServerLimits(
        connections_max=limits.max_connections,
        connections_per_ip_max=limits.max_connections_per_ip,
        connections_per_ip=limits.max_connections_per_ip_overrides,
        creation_rate=limits.max_connection_creation_rate,
        openings_max=limits.connection_openings_max,
        opening_s=limits.connection_opening_ms / 1000,
        certificates_interval_s=limits.certificates_interval_ms / 1000,
        violation_lines_max=limits.peer_log_lines_max,
        connection=ConnectionLimits(
            frame_bytes_max=limits.socket_request_max_bytes,
            replies_pending_max=limits.connection_requests_max,
            held_bytes_max=limits.connection_request_bytes_max,
            unsent_bytes_max=limits.connection_reply_bytes_max,
            stall_s=limits.connection_stall_ms / 1000,
            idle_s=limits.connections_max_idle_ms / 1000,
        ),
    )


@dataclass(slots=True, frozen=True)
class LogDuties:
    """When the broker looks after its logs; milliseconds."""

    log_retention_check_interval_ms: int = 300_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_cleaner_enable: bool = True
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 128 * MIB
    log_cleaner_io_max_bytes_per_second: float = 1.0e12
    log_dir_free_bytes_min: int = 256 * MIB
    num_recovery_threads_per_data_dir: int = 2
    open_files_max: int = 2_000
    unwritten_bytes_max: int = 64 * MIB
    producers_max: int = 1_000_000
    slow_write_ms: int = 50
    replay_bytes_max: int = 128 * KIB


@dataclass(slots=True, frozen=True)
class TierReads:
    """How much reading from the tier may take; the names are the settings' with underscores."""

    remote_fetch_max_wait_ms: int = 500
    remote_list_offsets_request_timeout_ms: int = 30_000
    tier_read_concurrency: int = 8
    tier_read_memory_bytes: int = 64 * MIB
    tier_chunk_bytes: int = 4 * MIB
    tier_prefetch_bytes: int = 16 * MIB
    tier_index_bytes: int = 32 * MIB
    tier_cache_bytes: int = 1024 * MIB
    tier_cache_open_files_max: int = 128


@dataclass(slots=True, frozen=True)
class BrokerConfig:
    """One broker. `node_settings` holds every node setting that was given, by Kafka's name: the synonyms from which
    topic settings take their defaults."""

    node_id: int
    listeners: tuple[Listen, ...]
    controllers: dict[int, Address]
    secret: bytes
    rack: str = ""
    cell: str = "default"  # tidelog.cell
    cluster_id: str = ""  # empty: taken from the metadata quorum
    broker_session_timeout_ms: int = 3_000
    broker_heartbeat_interval_ms: int = 500
    controlled_shutdown_enable: bool = True
    controlled_shutdown_timeout_ms: int = 20_000
    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    duties: LogDuties = field(default_factory=LogDuties)
    tier: TierConfig = field(default_factory=TierConfig)
    tier_reads: TierReads = field(default_factory=TierReads)
    audit: AuditConfig = field(default_factory=AuditConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    proxy_domain: str = ""  # tidelog.proxy.domain: what tenants' host names end with; empty tells own addresses
    proxy_port: int = 9092  # where proxies are reached under these names
    node_settings: dict[str, object] = field(default_factory=dict)

    @property
    def internal_listener(self) -> Listen:
        """The listener that other nodes use; ValueError when there is none."""
        for listen in self.listeners:
            if listen.kind == "internal":
                return listen
        raise ValueError("a broker needs an internal listener")
