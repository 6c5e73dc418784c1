"""Between PySyncObj and the network: changes, answers or drops messages that its handler would turn into lost or false
commits. No I/O.

Each rule is explained where it is applied. In short: an entry counts only where it was compared, an acknowledgement
only in its own term, and a follower's log is truncated only for an entry that contradicts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from common.errors import MalformedFrame
from kraft.quorum.write_ahead_log import WriteAheadLog

Message = dict[str, Any]

REQUEST_VOTE = "request_vote"
RESPONSE_VOTE = "response_vote"
APPEND_ENTRIES = "append_entries"
NEXT_NODE_IDX = "next_node_idx"
TIMEOUT_NOW = "timeout_now"
PRE_VOTE = "pre_vote"
PRE_VOTE_ANSWER = "pre_vote_answer"
RESIGNATION = "resignation"

PROMISES = frozenset({REQUEST_VOTE, RESPONSE_VOTE, NEXT_NODE_IDX})  # valid only if durable here

COMMAND, NO_OP = 0, 1  # first bytes of entries; PySyncObj's other two kinds are pickles

_HEADS: Mapping[str, Mapping[str, type]] = {
    REQUEST_VOTE: {"term": int, "last_log_index": int, "last_log_term": int},
    RESPONSE_VOTE: {"term": int},
    NEXT_NODE_IDX: {"term": int, "next_node_idx": int, "reset": bool, "success": bool},
    TIMEOUT_NOW: {"term": int},
    PRE_VOTE: {"term": int, "round": int, "last_log_index": int, "last_log_term": int},
    PRE_VOTE_ANSWER: {"term": int, "round": int, "granted": bool},
    RESIGNATION: {"term": int},
}
"""The last three are Tidelog's own and never reach the library. They are sent only to voters that support them."""
_ENTRIES = {"term": int, "commit_index": int, "prevLogIdx": int, "prevLogTerm": int, "entries": list}
_SNAPSHOT = {"term": int, "commit_index": int, "serialized": list, "snapshot_end": list}


@dataclass(slots=True)
class RaftView:
    """The state of the node that the rules need."""

    term: int
    applied_index: int
    commit_index: int
    journal: WriteAheadLog
    is_installing: bool = False  # a snapshot that is about to replace the log


class Delivery(NamedTuple):
    """`message` goes to PySyncObj's handler; after that, `answers` go to the sender."""

    message: Message
    answers: list[Message]


def check_message(message: object) -> Message:
    """The message from the network if it is one of those above and well-formed; else MalformedFrame."""
    if not isinstance(message, dict):
        raise MalformedFrame("a message is a map")
    kind = message.get("type")
    if kind == APPEND_ENTRIES:
        fields: Mapping[str, type] = _SNAPSHOT if "serialized" in message else _ENTRIES
    elif isinstance(kind, str) and kind in _HEADS:
        fields = _HEADS[kind]
    else:
        raise MalformedFrame(f"no message of the quorum: {kind!r:.40}")
    if len(message) != len(fields) + 1:
        raise MalformedFrame(f"{kind}: other fields than {', '.join(fields)}")
    for name, shape in fields.items():
        value = message.get(name)
        if type(value) is not shape or (isinstance(value, int) and value < 0):
            raise MalformedFrame(f"{kind}: {name} is {value!r:.40}")
    if kind == APPEND_ENTRIES:
        _check_snapshot_part(message) if "serialized" in message else _check_entries(message)
    return message


def _check_entries(message: Message) -> None:
    """Entries follow `prevLogIdx` without a gap, in terms that never decrease, without pickles."""
    index, term = message["prevLogIdx"], message["prevLogTerm"]
    for entry in message["entries"]:
        index += 1
        if type(entry) is not list or len(entry) != 3:
            raise MalformedFrame("an entry is command, index and term")
        command, entry_index, entry_term = entry
        if type(command) is not bytes or not command or command[0] > NO_OP:
            raise MalformedFrame("an entry is an opaque command or a no-op")
        if type(entry_index) is not int or type(entry_term) is not int:
            raise MalformedFrame("an entry's index and term are numbers")
        if entry_index != index or not term <= entry_term <= message["term"]:
            raise MalformedFrame(f"entry {entry_index!r:.40} does not follow entry {index - 1}")
        term = entry_term


def _check_snapshot_part(message: Message) -> None:
    part, end = message["serialized"], message["snapshot_end"]
    if len(end) != 2 or type(end[0]) is not int or type(end[1]) is not int:
        raise MalformedFrame("a snapshot ends at an index and a term")
    if end[0] < 0 or not 0 <= end[1] <= message["term"]:
        raise MalformedFrame("a snapshot ends at an index and a term of the past")
    if len(part) != 3 or type(part[0]) is not int or type(part[1]) is not int or type(part[2]) is not bytes:
        raise MalformedFrame("a part of a snapshot is position, total and bytes")
    if not 0 <= part[0] <= part[0] + len(part[2]) <= part[1]:
        raise MalformedFrame("a part of a snapshot lies inside of it")


def outgoing(view: RaftView, message: Message) -> Message:
    """The message as it is sent."""
    if message["type"] == NEXT_NODE_IDX:
        # Without the term, an acknowledgement in flight while the leader lost and regained its leadership would count
        # for entries that it never saw.
        message["term"] = view.term
        if message["reset"]:
            # Nothing before the commit index is in doubt, so one step back is enough; the library goes back one entry
            # per answer, and with several messages in flight never finishes.
            upper = min(message["next_node_idx"], view.commit_index + 1)
            message["next_node_idx"] = max(view.journal.first_index + 1, upper)
    return message


def incoming(view: RaftView, message: Message) -> Delivery | None:
    """The handling of a checked message from a voter; None drops it."""
    kind = message["type"]
    if kind == NEXT_NODE_IDX:
        return Delivery(message, []) if message["term"] == view.term else None
    if kind != APPEND_ENTRIES:
        return Delivery(message, [])
    if message["term"] < view.term:
        return None
    if view.is_installing:
        sign_of_life = {"type": APPEND_ENTRIES, "term": message["term"], "commit_index": 0}
        return Delivery(sign_of_life, [_answer(view.journal.last_index + 1, success=False)])
    if "serialized" in message:
        return _snapshot_part(view, message)
    return _entries(view, message)


def _snapshot_part(view: RaftView, message: Message) -> Delivery:
    end_index, end_term = message.pop("snapshot_end")
    # The leader's commit index does not apply to this node's current log.
    message["commit_index"] = 0
    if end_index <= view.applied_index or view.journal.term_at(end_index) == end_term:
        # Late or repeated: installing it would undo applied entries and truncate acknowledged ones.
        message["serialized"] = None
    else:
        message["serialized"] = (message["term"], end_index, end_term, *message["serialized"])
    # The sender must not consider this voter silent during a long snapshot transfer.
    return Delivery(message, [_answer(view.journal.last_index + 1, success=False)])


def _entries(view: RaftView, message: Message) -> Delivery:
    journal = view.journal
    previous_index = message["prevLogIdx"]
    entries = [tuple(entry) for entry in message["entries"]]
    if journal.term_at(previous_index) != message["prevLogTerm"]:
        message["entries"] = entries
        # The handler will answer with a reset, but would apply the commit index before.
        message["commit_index"] = 0
        return Delivery(message, [])
    same = 0
    while same < len(entries) and journal.term_at(previous_index + 1 + same) == entries[same][2]:
        same += 1
    message["commit_index"] = min(message["commit_index"], previous_index + len(entries))
    if same == len(entries):
        # The handler would truncate later entries, although nothing contradicts them and they may be acknowledged.
        # Without entries it treats the message as a keep-alive; the acknowledgement is sent from here.
        sign_of_life = {"type": APPEND_ENTRIES, "term": message["term"], "commit_index": message["commit_index"]}
        return Delivery(sign_of_life, [_answer(previous_index + same + 1, success=True)])
    if same:
        _, message["prevLogIdx"], message["prevLogTerm"] = entries[same - 1]
    message["entries"] = entries[same:]
    return Delivery(message, [])


def _answer(next_index: int, *, success: bool) -> Message:
    return {"type": NEXT_NODE_IDX, "next_node_idx": next_index, "reset": False, "success": success}
