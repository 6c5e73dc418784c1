"""The times and sizes of one Raft node."""

from __future__ import annotations

from dataclasses import dataclass

from pysyncobj import SyncObjConf

from common.node_settings.controllers import ControllerSettings
from common.settings import same, seconds
from kraft.quorum.write_ahead_log import WriteAheadLog


@dataclass(slots=True)
class NodeConfig:
    """Seconds and bytes, as `kraft.quorum.quorum.QuorumConfig` sets them. A voter that hears no leader canvasses
    after a time between the two time-outs, drawn again each time."""

    election_timeout_min_s: float = same(ControllerSettings, "controller_quorum_election_timeout_ms", seconds)
    election_timeout_max_s: float = same(ControllerSettings, "controller_quorum_fetch_timeout_ms", seconds)
    heartbeat_interval_s: float = 0.1
    leader_fallback_timeout_s: float = same(ControllerSettings, "controller_quorum_fetch_timeout_ms", seconds)
    """Without a majority's answers for so long a leader resigns."""
    append_bytes_max: int = 128 << 10  # in one message; a larger entry travels alone
    backlog_bytes_max: int = 1 << 20  # unsent on one link: more, and it gets signs of life only
    snapshot_part_bytes: int = 256 << 10
    snapshot_bytes_max: int = 512 << 20
    compaction_entries_min: int = 20_000
    compaction_bytes_min: int = same(ControllerSettings, "snapshot_record_bytes_max")  # entries are in memory


def library_config(journal: WriteAheadLog, config: NodeConfig) -> SyncObjConf:
    """The configuration in PySyncObj's form."""
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,  # nothing wakes a poller: `step` sends
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        journalFile=journal,
        fullDumpFile=None,  # `_compact` and `recover` have it
        raftMinTimeout=config.election_timeout_min_s,
        raftMaxTimeout=config.election_timeout_max_s,
        appendEntriesPeriod=config.heartbeat_interval_s,
        leaderFallbackTimeout=config.leader_fallback_timeout_s,
        connectionTimeout=60.0,
    )
