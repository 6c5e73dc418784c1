"""Timeouts and sizes of one Raft node."""

from __future__ import annotations

from dataclasses import dataclass

from pysyncobj import SyncObjConf

from common.node_settings.controllers import ControllerSettings
from common.settings import same, seconds
from kraft.quorum.write_ahead_log import WriteAheadLog


@dataclass(slots=True)
class NodeConfig:
    """Seconds and bytes, set from `kraft.quorum.quorum.QuorumConfig`. A voter that hears no leader starts a pre-vote
    round after a random time between the two timeouts."""

    election_timeout_min_s: float = same(ControllerSettings, "controller_quorum_election_timeout_ms", seconds)
    election_timeout_max_s: float = same(ControllerSettings, "controller_quorum_fetch_timeout_ms", seconds)
    heartbeat_interval_s: float = 0.1
    leader_fallback_timeout_s: float = same(ControllerSettings, "controller_quorum_fetch_timeout_ms", seconds)
    """A leader resigns after this time without a majority's answers."""
    append_bytes_max: int = 128 << 10  # per message; a larger entry is sent alone
    backlog_bytes_max: int = 1 << 20  # unsent on one link; above it, the link gets only keep-alives
    snapshot_part_bytes: int = 256 << 10
    snapshot_bytes_max: int = 512 << 20
    compaction_entries_min: int = 20_000
    compaction_bytes_min: int = same(ControllerSettings, "snapshot_record_bytes_max")  # entries are in memory


def library_config(journal: WriteAheadLog, config: NodeConfig) -> SyncObjConf:
    """The configuration in PySyncObj's form."""
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,  # no poller: `step` sends
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        journalFile=journal,
        fullDumpFile=None,  # `_compact` and `recover` do this
        raftMinTimeout=config.election_timeout_min_s,
        raftMaxTimeout=config.election_timeout_max_s,
        appendEntriesPeriod=config.heartbeat_interval_s,
        leaderFallbackTimeout=config.leader_fallback_timeout_s,
        connectionTimeout=60.0,
    )
