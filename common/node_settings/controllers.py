"""Controllers: brokers' sessions, the quorum and its metadata."""

from dataclasses import dataclass

from common.settings import MIB, setting


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Of the metadata quorum, and of brokers towards it."""

    # fmt: off
    broker_session_timeout_ms: int = setting("broker.session.timeout.ms", "int", 3_000,
        "Silence after which a broker is fenced.", 100)
    broker_heartbeat_interval_ms: int = setting("broker.heartbeat.interval.ms", "int", 500,
        "How often a broker is heard.", 10)
    broker_suspicion_ms: int = setting("tidelog.broker.suspicion.ms", "int", 300,
        "How long a broker whose heartbeat connection closed has to be heard again before it is fenced.", 10)
    controller_quorum_election_timeout_ms: int = setting("controller.quorum.election.timeout.ms", "int", 1_000,
        "The shortest silence of the leader after which a voter asks the others whether it should be replaced, and "
        "for how long after its last word a voter refuses to.", 50)
    controller_quorum_fetch_timeout_ms: int = setting("controller.quorum.fetch.timeout.ms", "int", 2_000,
        "The longest such silence, drawn by chance between the two; and after so long without the answers of a "
        "majority a leader resigns.", 50)
    snapshot_record_bytes_max: int = setting("metadata.log.max.record.bytes.between.snapshots", "long", 20 * MIB,
        "Bytes of metadata between snapshots; a controller has them in memory.", 16 * MIB)
    metadata_tail_bytes_max: int = setting("tidelog.metadata.tail.bytes.max", "long", 32 * MIB,
        "Bytes of committed metadata that a controller keeps in memory for brokers to follow; who is further behind "
        "gets a snapshot.", 1 * MIB)
    metadata_tail_batches_max: int = setting("tidelog.metadata.tail.batches.max", "int", 20_000,
        "The same, in batches.", 100)
    metadata_rebuild_file: str = setting("tidelog.metadata.rebuild.file", "string", "",
        "What `tidelog tier rebuild` wrote: the metadata with which controllers begin that have none. The same file "
        "on each.")
    # fmt: on
