"""The message filter: shapes that are refused, and each rule's case."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MalformedFrame
from kraft.quorum.message_filter import Message, RaftView, check_message, incoming, outgoing
from kraft.quorum.write_ahead_log import WriteAheadLog
from tests.kraft.memory_disk import MemoryDisk


def append(previous: tuple[int, int], *terms: int, term: int = 9, commit: int = 0) -> Message:
    """Entries of `terms` behind `previous` (index, term)."""
    entries = [[b"\0x", previous[0] + 1 + k, entry_term] for k, entry_term in enumerate(terms)]
    return check_message(
        {
            "type": "append_entries",
            "term": term,
            "commit_index": commit,
            "prevLogIdx": previous[0],
            "prevLogTerm": previous[1],
            "entries": entries,
        }
    )


def snapshot_part(end: tuple[int, int], term: int = 9) -> Message:
    part = {"serialized": [0, 3, b"abc"], "snapshot_end": list(end)}
    return check_message({"type": "append_entries", "term": term, "commit_index": 50, **part})


def view_of(*terms: int, applied: int = 1, commit: int = 1, term: int = 9) -> RaftView:
    """A log of the no-op and one entry per term."""
    journal = WriteAheadLog.create(MemoryDisk(), "quorum", random.Random(1), 1)
    for entry_term in terms:
        journal.add(b"\0x", journal.last_index + 1, entry_term)
    return RaftView(term, applied, commit, journal)


ACKNOWLEDGEMENT = {"type": "next_node_idx", "term": 9, "next_node_idx": 4, "reset": False, "success": True}


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"type": "apply_command", "command": b"x"},
        {"type": "apply_command_response", "request_id": 1},
        {"type": ["append_entries"]},
        {"type": "request_vote", "term": 1},
        {"type": "request_vote", "term": -1, "last_log_index": 1, "last_log_term": 1},
        {"type": "request_vote", "term": True, "last_log_index": 1, "last_log_term": 1},
        {"type": "response_vote", "term": 1, "more": 1},
        {**ACKNOWLEDGEMENT, "reset": 1},
        {"type": "append_entries", "term": 1, "commit_index": 1, "transmission": "start", "data": b"x"},
        {"type": "response_vote", "term": msgspec.msgpack.Ext(5, b"1")},
        {"type": "response_vote", "term": 1.0},
        {"type": "response_vote", "term": datetime.fromtimestamp(1, UTC)},
        {"type": msgspec.msgpack.Ext(5, b"append_entries"), "term": 1},
        {"type": "response_vote", ("term",): 1},
        {"type": "response_vote", "term": 1, ("more",): 1},
    ],
)
def test_other_shapes_are_refused(message: object) -> None:
    with pytest.raises(MalformedFrame):
        check_message(message)


@pytest.mark.parametrize(
    "entry",
    [
        [b"\2pickle", 6, 5],
        [b"\3pickle", 6, 5],
        [b"", 6, 5],
        ["\0text", 6, 5],
        [b"\0x", 7, 5],
        [b"\0x", 6, 4],
        [b"\0x", 6, 10],
        [b"\0x", 6],
        [b"\0x", 6.0, 5],
        [b"\0x", 6, 5.0],
        [b"\0x", 6, msgspec.msgpack.Ext(5, b"5")],
        [msgspec.msgpack.Ext(5, b"\0x"), 6, 5],
        {(0,): b"\0x"},
        msgspec.msgpack.Ext(5, b"\0x"),
        b"\0x",
    ],
)
def test_entries_that_do_not_follow_or_are_not_opaque_are_refused(entry: Any) -> None:
    message = append((5, 5))
    message["entries"] = [entry]
    with pytest.raises(MalformedFrame):
        check_message(message)


def test_an_index_is_a_number_also_where_true_equals_it() -> None:
    message = append((0, 0), 5)
    message["entries"] = [[b"\0x", True, 5]]
    with pytest.raises(MalformedFrame):
        check_message(message)


@pytest.mark.parametrize("end", [(-1, 5), (20, -1), (20, 10), (20.0, 5), (20, msgspec.msgpack.Ext(5, b"5"))])
def test_a_snapshot_ends_at_an_entry_of_the_past(end: Any) -> None:
    with pytest.raises(MalformedFrame):
        snapshot_part(end)


@pytest.mark.parametrize("part", [[0, 3, "abc"], [0, 2, b"abc"], [-1, 9, b"a"], [0, 3], [5, 3, b""], [0, True, b""]])
def test_parts_that_lie_outside_of_their_snapshot_are_refused(part: Any) -> None:
    message = snapshot_part((20, 5))
    message["serialized"] = part
    with pytest.raises(MalformedFrame):
        check_message(message)


SCALARS = st.none() | st.booleans() | st.integers() | st.binary(max_size=3) | st.text(max_size=3)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
KEYS = st.sampled_from(
    ["term", "commit_index", "prevLogIdx", "prevLogTerm", "entries", "serialized", "snapshot_end", "reset", "success"]
)


@given(st.sampled_from(["append_entries", "next_node_idx", "timeout_now"]), st.dictionaries(KEYS, VALUES))
def test_nothing_but_malformed_frames_comes_of_junk(kind: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(MalformedFrame):
        check_message({"type": kind, **fields})


def test_an_acknowledgement_counts_in_its_own_term_alone() -> None:
    assert incoming(view_of(), dict(ACKNOWLEDGEMENT)) is not None
    assert incoming(view_of(term=10), dict(ACKNOWLEDGEMENT)) is None
    sent = outgoing(view_of(term=4), {"type": "next_node_idx", "next_node_idx": 2, "reset": False, "success": True})
    assert sent["term"] == 4


def test_a_reset_goes_back_to_the_commit_index_at_once() -> None:
    reset = {"type": "next_node_idx", "next_node_idx": 5, "reset": True, "success": False}
    assert outgoing(view_of(1, 1, 1, 1, commit=3), dict(reset))["next_node_idx"] == 4
    assert outgoing(view_of(commit=1), dict(reset))["next_node_idx"] == 2


def test_old_leaders_are_not_heard() -> None:
    assert incoming(view_of(1, 1), append((3, 1), term=8)) is None
    assert incoming(view_of(1, 1), snapshot_part((9, 8), term=8)) is None


def test_what_agrees_is_never_cut() -> None:
    delivery = incoming(view_of(1, 2, 2, 3), append((1, 0), 1, 2, commit=9))
    assert delivery is not None
    assert "prevLogIdx" not in delivery.message  # the handler would cut behind it
    assert delivery.message["commit_index"] == 3  # not the tail, which was not compared
    assert delivery.answers == [{"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True}]


def test_only_what_is_new_or_contradicts_goes_to_the_handler() -> None:
    delivery = incoming(view_of(1, 2, 2, 3), append((1, 0), 1, 2, 5, 5, 5, commit=4))
    assert delivery is not None
    assert not delivery.answers
    message = delivery.message
    assert (message["prevLogIdx"], message["prevLogTerm"], message["commit_index"]) == (3, 2, 4)
    assert [entry[1:] for entry in message["entries"]] == [(4, 5), (5, 5), (6, 5)]


def test_a_log_that_does_not_connect_commits_nothing() -> None:
    for previous in ((9, 3), (3, 7)):
        delivery = incoming(view_of(1, 1, 1), append(previous, 8, commit=9))
        assert delivery is not None
        assert delivery.message["commit_index"] == 0
        assert delivery.message["prevLogIdx"] == previous[0]


def test_a_snapshot_commits_nothing_of_the_log_that_is_still_there() -> None:
    delivery = incoming(view_of(1, 1), snapshot_part((20, 5)))
    assert delivery is not None
    assert delivery.message["commit_index"] == 0
    assert delivery.message["serialized"] == (9, 20, 5, 0, 3, b"abc")
    assert [answer["success"] for answer in delivery.answers] == [False]


def test_a_snapshot_of_what_is_here_is_not_installed() -> None:
    applied = incoming(view_of(1, 1, 1, applied=4), snapshot_part((3, 8)))
    in_the_log = incoming(view_of(1, 1, 1, applied=1), snapshot_part((3, 1)))
    for delivery in (applied, in_the_log):
        assert delivery is not None
        assert delivery.message["serialized"] is None


def test_while_a_snapshot_is_installed_nothing_enters_the_log_and_the_leader_is_answered() -> None:
    view = dataclasses.replace(view_of(3, 4), is_installing=True)
    for message in (append((3, 4), 9, commit=4), snapshot_part((50, 8))):
        delivery = incoming(view, message)
        assert delivery is not None
        assert delivery.message == {"type": "append_entries", "term": 9, "commit_index": 0}
        (answer,) = delivery.answers
        assert not answer["success"]
        assert not answer["reset"]
