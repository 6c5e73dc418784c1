"""Replication and leadership of partitions."""

from dataclasses import dataclass

from common.settings import CLUSTER_WIDE, LONG_MAX, MIB, PER_BROKER, setting

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ALWAYS = "org.apache.kafka.common.replica.LeaderSelector"


def is_rack_aware(selector: str) -> bool:
    """Whether the selector lets a consumer read from the replica in its own rack."""
    return "Rack" in selector


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Settings of leaders and followers."""

    # fmt: off
    replica_lag_time_max_ms: int = setting("replica.lag.time.max.ms", "long", 30_000,
        "How long a follower may stay behind before it leaves the ISR.", 1)
    replica_fetch_max_bytes: int = setting("replica.fetch.max.bytes", "int", MIB,
        "Bytes of one partition in a follower's fetch.", 0)
    replica_fetch_min_bytes: int = setting("replica.fetch.min.bytes", "int", 1,
        "Bytes that a follower's fetch waits for.", 1)
    replica_fetch_wait_max_ms: int = setting("replica.fetch.wait.max.ms", "int", 500,
        "How long a follower's fetch waits; the same on all brokers. Coordinators show nothing once a follower has "
        "been silent for twice as long, at least 1 s.", 1, 30_000)
    replica_fetch_response_max_bytes: int = setting("replica.fetch.response.max.bytes", "int", 10 * MIB,
        "Bytes of a follower's fetch.", 0)
    replica_fetch_backoff_ms: int = setting("replica.fetch.backoff.ms", "int", 200, "Pause after a failed fetch.", 0)
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms", "long", 5_000,
        "How often high watermarks are written.", 1)
    rack_aware_reads: bool = setting("replica.selector.class", "string", RACK_AWARE,
        "How a consumer's replica is chosen; empty always chooses the leader.",
        choices=("", RACK_AWARE, LEADER_ALWAYS), read_as=is_rack_aware)
    fetch_max_bytes: int = setting("fetch.max.bytes", "int", 55 * MIB, "Bytes of one consumer fetch.", 1024)
    max_incremental_fetch_session_cache_slots: int = setting("max.incremental.fetch.session.cache.slots", "int", 1_000,
        "Fetch sessions of consumers.", 0)
    leader_replication_throttled_rate: int = setting("leader.replication.throttled.rate", "long", LONG_MAX,
        "Bytes per second that this broker sends to throttled replicas that are not in sync.", 0, update=CLUSTER_WIDE)
    follower_replication_throttled_rate: int = setting("follower.replication.throttled.rate", "long", LONG_MAX,
        "Bytes per second that this broker fetches for its throttled replicas that are not in sync.", 0,
        update=CLUSTER_WIDE)
    auto_leader_rebalance_enable: bool = setting("auto.leader.rebalance.enable", "boolean", True,
        "Whether leadership returns to the preferred replica.")
    leader_imbalance_check_interval_seconds: int = setting("leader.imbalance.check.interval.seconds", "long", 300,
        "How often preferred leaders are checked.", 1)
    controlled_shutdown_enable: bool = setting("controlled.shutdown.enable", "boolean", True,
        "Whether leadership moves before a broker stops.")
    broker_cordoned: bool = setting("tidelog.broker.cordoned", "boolean", False,
        "Whether new replicas stay away from this broker; `tidelog brokers drain` sets it.", update=PER_BROKER)
    controlled_shutdown_timeout_ms: int = setting("tidelog.controlled.shutdown.timeout.ms", "int", 20_000,
        "How long a stop waits for leadership to move.", 1)
    # fmt: on
