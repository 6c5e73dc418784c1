"""The settings of a simulated cluster: short timeouts, so that ten virtual seconds hold several failovers."""

from __future__ import annotations

from dataclasses import replace

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.coordination.transactions.config import TransactionConfig
from broker.listeners import Listen
from broker.partitions.config import LogDuties
from broker.replication.config import ReplicationConfig
from broker.tier.config import TierConfig
from common.node_settings.controllers import ControllerSettings
from common.node_settings.health import HealthSettings
from common.node_settings.pressure import PressureSettings
from common.node_settings.tier import TierReads, TierStateSettings
from common.node_settings.topics import TopicDefaults
from common.ports import Address
from common.settings import SettingValues
from kraft.controller.health_duties import HealthConfig
from kraft.controller.leader_return import LeaderReturnConfig
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig
from kraft.controller.policy import ControllerPolicy
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.quorum import QuorumConfig
from wire.listeners import ListenerConfig, ListenerKind

CONTROLLER_ID_BASE = 1_000
CONTROLLER_COUNT = 3
CLIENT_PORT, INTERNAL_PORT, QUORUM_PORT = 9092, 9093, 9094
SECRET = b"the secret of a simulated cluster"
MIN_INSYNC = 2
REPLICATION_FACTOR = 3
SNAPSHOT_AFTER_ENTRIES = 60
TIER_URI = "file:///bucket"  # a name; what it opens is the world's bucket
RETENTION_INTERVAL_MS = 400
USAGE_INTERVAL_MS = 500
SILENCE_MS = 800
CACHE_BYTES = 8_192

_NODE_SETTINGS: dict[str, object] = {
    "default.replication.factor": REPLICATION_FACTOR,
    "min.insync.replicas": MIN_INSYNC,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": REPLICATION_FACTOR,
    "offsets.commit.timeout.ms": 900,
    "group.min.session.timeout.ms": 100,
    "group.initial.rebalance.delay.ms": 100,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": REPLICATION_FACTOR,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "tidelog.audit.topic.num.partitions": 1,
    "tidelog.audit.topic.replication.factor": REPLICATION_FACTOR,
    "tidelog.tier.state.partitions": 1,
    "tidelog.tier.state.replication.factor": REPLICATION_FACTOR,
}


# A copy takes milliseconds here; a store that is away for seconds must not make what follows wait for minutes.
_TIER = TierConfig(
    uri=TIER_URI,
    interval_ms=200,
    delete_delay_ms=300,
    manifest_keep_ms=600,
    sweep_interval_ms=1_500,
    sweep_age_ms=2_000,
    proposals_interval_ms=100,
    erase_grace_ms=200,
    retention_interval_ms=RETENTION_INTERVAL_MS,
    backoff_min_ms=50,
    backoff_max_ms=500,
)


def broker_name(broker: int) -> str:
    return f"broker-{broker}"


def controller_name(number: int) -> str:
    return f"controller-{number}"


def voters(port: int) -> dict[int, Address]:
    return {CONTROLLER_ID_BASE + number: (controller_name(number), port) for number in range(CONTROLLER_COUNT)}


def broker_settings(
    broker: int, rack: str, segment_bytes: int, *, flushes_each: bool, chunk_bytes: int = 0
) -> BrokerConfig:
    """`segment_bytes` and `flushes_each` are of the internal topics; with `chunk_bytes` there is a tier."""
    name = broker_name(broker)
    settings = _NODE_SETTINGS | {
        "offsets.topic.segment.bytes": segment_bytes,
        "transaction.state.log.segment.bytes": segment_bytes,
        "tidelog.tier.state.segment.bytes": segment_bytes,
    }
    if flushes_each:
        settings["log.flush.interval.messages"] = 1
    values = SettingValues(settings)
    clients, internal = (name, CLIENT_PORT), (name, INTERNAL_PORT)
    return BrokerConfig(
        node_id=broker,
        listeners=(Listen("PLAINTEXT", clients, clients), Listen("INTERNAL", internal, internal, "internal")),
        controllers=voters(INTERNAL_PORT),
        secret=SECRET,
        rack=rack,
        sessions=ControllerSettings(
            broker_session_timeout_ms=900, broker_heartbeat_interval_ms=200, usage_report_interval_ms=USAGE_INTERVAL_MS
        ),
        pressure=PressureSettings(enable=False),  # no scenario comes near a broker's limits
        health=HealthSettings(network_silence_ms=0),  # probes come where a scenario is about them
        topics=TopicDefaults(auto_create_topics_enable=False),
        replication=ReplicationConfig(
            controlled_shutdown_timeout_ms=1_500,
            replica_lag_time_max_ms=800,
            replica_fetch_wait_max_ms=300,
            replica_fetch_backoff_ms=60,
            replica_high_watermark_checkpoint_interval_ms=700,
            request_timeout_ms=1_500,
        ),
        duties=LogDuties(
            log_cleaner_enable=False,
            free_bytes_min=1 << 20,
            replay_bytes_max=0 if broker % 2 else 1 << 20,  # after a cut, producers are read in a thread, or at once
            log_retention_check_interval_ms=RETENTION_INTERVAL_MS if chunk_bytes else 300_000,
        ),
        groups=values.group(GroupConfig),
        transactions=values.group(TransactionConfig),
        audit=values.group(AuditConfig),
        tier=_TIER if chunk_bytes else TierConfig(),
        tier_state=values.group(TierStateSettings),
        tier_reads=TierReads(tier_chunk_bytes=chunk_bytes, tier_cache_bytes=CACHE_BYTES, tier_prefetch_bytes=2_048),
        node_settings=settings,
    )


def caring(config: ControllerConfig) -> ControllerConfig:
    """A controller that finds a sick broker within seconds."""
    return replace(config, health=HealthConfig(slow_score=2, effect_s=3.0, samples_min=1))


def watching(config: BrokerConfig) -> BrokerConfig:
    """A broker that probes others, and says soon that it hears nobody."""
    return replace(config, health=replace(config.health, network_silence_ms=SILENCE_MS))


def quorum_times() -> NodeConfig:
    return NodeConfig(
        election_timeout_min_s=0.3,
        election_timeout_max_s=0.6,
        heartbeat_interval_s=0.05,
        leader_fallback_timeout_s=0.6,
    )


def controller_settings(number: int, *, snapshots: bool, piece: int = 1) -> ControllerConfig:
    """`snapshots`: often enough to happen within a run. `piece`: how many partitions change in one commit, where an
    event concerns more."""
    address = (controller_name(number), INTERNAL_PORT)
    node = quorum_times()
    if snapshots:
        node.compaction_entries_min = SNAPSHOT_AFTER_ENTRIES
    return ControllerConfig(
        node_id=CONTROLLER_ID_BASE + number,
        voters=voters(QUORUM_PORT),
        listener=ListenerConfig("INTERNAL", address, address, ListenerKind.INTERNAL),
        secret=SECRET,
        policy=ControllerPolicy(
            default_replication_factor=REPLICATION_FACTOR,
            min_insync_replicas=MIN_INSYNC,
            piece_records_max=piece,
            static={"min.insync.replicas": str(MIN_INSYNC), "tidelog.tier.uri": TIER_URI},
        ),
        liveness=LivenessConfig(session_timeout_s=0.9, suspicion_s=0.15),
        leader_return=LeaderReturnConfig(interval_s=2.0),
        usage_report_interval_s=USAGE_INTERVAL_MS / 1000,
        quorum=QuorumConfig(node=node),
    )
