"""Controllers: brokers' sessions, the quorum and its metadata."""

from dataclasses import dataclass

from common.settings import MIB, setting


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the metadata quorum, and of brokers towards it."""

    # fmt: off
    broker_session_timeout_ms: int = setting("broker.session.timeout.ms", "int", 3_000,
        "Silence after which a broker is fenced; also how long clients that ask for topics by name go on seeing a "
        "broker that died.", 100)
    broker_heartbeat_interval_ms: int = setting("broker.heartbeat.interval.ms", "int", 500,
        "The interval of a broker's heartbeats.", 10)
    broker_suspicion_ms: int = setting("tidelog.broker.suspicion.ms", "int", 300,
        "How long a broker whose heartbeat connection closed has to send a heartbeat before it is fenced.", 10)
    usage_report_interval_ms: int = setting("tidelog.usage.report.interval.ms", "int", 5_000,
        "How often a broker reports to the active controller what its clients use.", 100, 3_600_000)
    health_enable: bool = setting("tidelog.health.enable", "boolean", True,
        "Whether the controller puts sick brokers aside by itself, and takes them back.")
    health_dry_run: bool = setting("tidelog.health.dry.run", "boolean", False,
        "Whether it only logs what it would put aside or take back.")
    health_effect_ms: int = setting("tidelog.health.effect.ms", "int", 600_000,
        "How long a broker that was put aside has to hand over what others can take, before the operator is called.",
        100)
    health_slow_score: int = setting("tidelog.health.slow.score", "int", 60,
        "How many more looks than not, one at each interval of usage reports, must find a broker slower than its peers "
        "before it counts as slow; and how many must know its past.", 1, 100_000)
    health_slow_floor_ms: int = setting("tidelog.health.slow.floor.ms", "int", 50,
        "A broker that acknowledges within this time (p99) is never slow.", 1)
    health_slow_ratio: float = setting("tidelog.health.slow.ratio", "double", 3.0,
        "How many times longer than its peers (median), and than itself before (p90), a slow broker takes.", 1.0)
    controller_quorum_election_timeout_ms: int = setting("controller.quorum.election.timeout.ms", "int", 1_000,
        "The shortest silence of the leader after which a voter starts a pre-vote; a voter that heard the leader "
        "within this time rejects pre-votes.", 50)
    controller_quorum_fetch_timeout_ms: int = setting("controller.quorum.fetch.timeout.ms", "int", 2_000,
        "The longest such silence, which is random between the two; a leader without responses of a majority for this "
        "long resigns.", 50)
    snapshot_record_bytes_max: int = setting("metadata.log.max.record.bytes.between.snapshots", "long", 20 * MIB,
        "Bytes of metadata between snapshots; a controller has them in memory.", 16 * MIB)
    metadata_tail_bytes_max: int = setting("tidelog.metadata.tail.bytes.max", "long", 32 * MIB,
        "Bytes of committed metadata that a controller keeps in memory for brokers to follow; a broker further behind "
        "gets a snapshot.", 1 * MIB)
    metadata_tail_batches_max: int = setting("tidelog.metadata.tail.batches.max", "int", 20_000,
        "The same, in batches.", 100)
    metadata_rebuild_file: str = setting("tidelog.metadata.rebuild.file", "string", "",
        "The output of `tidelog tier rebuild`: the metadata with which controllers without any begin. The same file on "
        "each.")
    # fmt: on
