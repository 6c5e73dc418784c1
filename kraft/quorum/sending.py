"""The messages that a leader sends to one follower: as much as its link has room for. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from kraft.quorum.message_filter import APPEND_ENTRIES, Message
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.snapshot_transfer import SnapshotTransfer
from kraft.quorum.write_ahead_log import WriteAheadLog


class Standing(NamedTuple):
    """The leader's term and commit index, and the bytes that the link to the follower still holds."""

    term: int
    commit_index: int
    queued_bytes: int


class Sending(NamedTuple):
    """`next_index`: what the follower needs after these messages."""

    messages: list[Message]
    next_index: int


def entries_from(next_index: int, journal: WriteAheadLog, standing: Standing, config: NodeConfig) -> Sending:
    """Entries, or a keep-alive without any."""
    messages: list[Message] = []
    queued = standing.queued_bytes
    while True:
        previous_index = next_index - 1
        has_room = queued < config.backlog_bytes_max
        entries = journal.batch(next_index, config.append_bytes_max) if has_room else []
        messages.append(
            {
                "type": APPEND_ENTRIES,
                "term": standing.term,
                "commit_index": standing.commit_index,
                "prevLogIdx": previous_index,
                "prevLogTerm": journal.term_at(previous_index),
                "entries": entries,
            }
        )
        next_index += len(entries)
        queued += sum(len(entry[0]) for entry in entries)
        if not entries or next_index > journal.last_index:
            return Sending(messages, next_index)


def snapshot_parts(node_id: int, transfer: SnapshotTransfer, standing: Standing, config: NodeConfig) -> Sending:
    """Parts of the newest snapshot. After the last one the follower needs the entries after it; until then `next_index`
    is 0."""
    messages: list[Message] = []
    end = transfer.end
    queued = standing.queued_bytes
    while queued < config.backlog_bytes_max:
        part = transfer.next_part(node_id, standing.term)
        messages.append(
            {
                "type": APPEND_ENTRIES,
                "term": standing.term,
                "commit_index": standing.commit_index,
                "serialized": list(part),
                "snapshot_end": end,
            }
        )
        queued += len(part.data)
        if part.is_last and end is not None:
            return Sending(messages, end[0] + 1)
    return Sending(messages, 0)
