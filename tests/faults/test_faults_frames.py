"""Bytes that are no request: one log line and the end of that one connection, at no cost to anybody else."""

from __future__ import annotations

import contextlib
import random
from struct import pack

import pytest

from tests.faults.conftest import FRAME_BYTES_MAX, HELD_BYTES_MAX
from tests.faults.hostile_frames import frames, send_all
from tests.faults.raw_client import RawClient, closed_quietly
from tests.faults.watched_node import MIB, WatchedNode, bystander, make_topic, produce, some_batch
from wire.apis import APIS
from wire.codec import encode_request
from wire.listeners import ListenerKind
from wire.messages import ApiVersionsRequest, MetadataRequest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]

SLACK_BYTES = 24 * MIB  # buffers that are kept for the next one, and the allocator's own
KEPT_BYTES_MAX = 32 * MIB + SLACK_BYTES
HEADER = b"\0\0\0\7" + b"\0\3raw"  # correlation, client id
CROWD = 2_000
HOSTILE = 800
HUGE = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"

BAD_FRAMES = {
    "negative length": b"\xff\xff\xff\xff",
    "most negative length": b"\x80\0\0\0",
    "absurd length": HUGE,
    "length over the limit": pack(">i", FRAME_BYTES_MAX + 1),
    "no length at all": b"\0\0\0\0",
    "shorter than a header": b"\0\0\0\3\0\3\0",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(600),
    "unknown api": pack(">ihh", 13, 999, 0) + HEADER,
    "negative api": pack(">ihh", 13, -1, 0) + HEADER,
    "unknown version": pack(">ihh", 13, 3, 99) + HEADER,
    "negative version": pack(">ihh", 13, 3, -1) + HEADER,
    "produce of an old version": pack(">ihh", 13, 0, 2) + HEADER,
    "client id longer than its frame": pack(">ihhih", 10, 3, 1, 7, 3_000),
    "client id of negative length": pack(">ihhih", 10, 3, 1, 7, -2),
    "client id that is no text": pack(">ihhih", 12, 3, 1, 7, 2) + b"\xff\xfe",
    "array of gigabytes": pack(">ihh", 17, 3, 1) + HEADER + HUGE,
    "compact array of gigabytes": pack(">ihh", 19, 3, 12) + HEADER + b"\0" + HUGE_VARINT,
    "varint without an end": pack(">ihh", 24, 3, 12) + HEADER + b"\0" + b"\xff" * 10,
    "produce of gigabytes of topics": pack(">ihh", 25, 0, 3) + HEADER + b"\xff\xff\0\1\0\0\0\1" + HUGE,
    "fetch of gigabytes of topics": pack(">ihh", 34, 1, 4) + HEADER + b"\xff" * 4 + bytes(13) + HUGE,
    "tagged field of gigabytes": pack(">ihh", 21, 3, 12) + HEADER + b"\1\0" + HUGE_VARINT + b"\0",
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_what_is_no_request_ends_its_connection_with_one_line(node: WatchedNode, name: str) -> None:
    with node.connect() as attacker:
        attacker.send(BAD_FRAMES[name])
        assert attacker.is_closed_by_peer()
        line = node.one_line_about(attacker.name)
    assert line["event"] == "connection closed"
    assert line["level"] == "warning"
    assert line["reason"]


def test_garbled_bodies_of_every_api_and_version_harm_nobody(node: WatchedNode) -> None:
    """Garbage may by chance be a request; then it is answered, and what ends the connection is logged once."""
    rng = random.Random(7)
    node.forget_peak()
    before = node.resident_bytes()
    with bystander(node):
        for api in APIS.values():
            for version in range(api.min_version, api.max_version + 1):
                _garble(node, rng, api.key, version)
    assert node.peak_bytes() < before + SLACK_BYTES


def _garble(node: WatchedNode, rng: random.Random, api_key: int, version: int) -> None:
    tags = b"\0" if APIS[api_key].flexible_from <= version else b""
    body = rng.randbytes(rng.choice([0, 1, 9, 60, 2_000]))
    with node.connect() as attacker:
        before = len(node.lines_about(attacker.name))  # an earlier client may have had the same port
        attacker.send_frame(pack(">hhi", api_key, version, 1) + b"\0\3raw" + tags + body)
        attacker.socket.shutdown(1)
        assert attacker.is_closed_by_peer(), (api_key, version)
        assert len(node.lines_about(attacker.name)) <= before + 1


def test_a_cut_frame_is_dropped_in_silence(node: WatchedNode) -> None:
    whole = encode_request(MetadataRequest(topics=None), 1, 1, "raw")
    for size in range(1, len(whole)):
        with node.connect() as attacker:
            attacker.send(whole[:size])
            attacker.socket.shutdown(1)
            assert attacker.is_closed_by_peer()
            assert not node.lines_about(attacker.name)


def test_an_api_for_nodes_is_refused_to_a_client_even_when_it_is_well_formed(node: WatchedNode) -> None:
    for api in APIS.values():
        if ListenerKind.OPERATOR in api.kinds:
            continue
        with node.connect() as attacker:
            attacker.send(encode_request(api.request(), api.max_version, 1, "raw"))
            assert attacker.is_closed_by_peer(), api.name
            assert f"api {api.key} " in node.one_line_about(attacker.name)["reason"]


def test_lengths_that_are_claimed_and_not_sent_cost_nothing(node: WatchedNode) -> None:
    before = node.resident_bytes()
    attackers = [node.connect() for _ in range(300)]
    try:
        for attacker in attackers:
            attacker.send(pack(">ihh", FRAME_BYTES_MAX, 0, 9) + bytes(4_000))
        with bystander(node):
            pass
        assert node.resident_bytes() < before + SLACK_BYTES
    finally:
        closed_quietly(attackers)


def test_many_half_sent_frames_stay_within_the_budget_of_all(node: WatchedNode) -> None:
    """300 MiB on their way, of which the broker holds what its settings allow; the rest waits in the peers."""
    node.forget_peak()
    before = node.resident_bytes()
    attackers = [node.connect() for _ in range(300)]
    try:
        for attacker in attackers:
            attacker.socket.settimeout(0.02)
            with contextlib.suppress(TimeoutError):  # not read any more: that is the point
                attacker.send(pack(">ihh", FRAME_BYTES_MAX, 0, 9) + bytes(MIB))
        assert node.peak_bytes() < before + HELD_BYTES_MAX + FRAME_BYTES_MAX + KEPT_BYTES_MAX
        with bystander(node):
            pass
    finally:
        closed_quietly(attackers)


def test_one_byte_at_a_time_is_served_and_slows_nobody(node: WatchedNode) -> None:
    request = encode_request(ApiVersionsRequest(), 0, 1, "raw")
    writers = [node.connect() for _ in range(100)]
    try:
        with bystander(node):
            for at in range(len(request)):
                for writer in writers:
                    writer.send(request[at : at + 1])
        for writer in writers:
            assert writer.receive_frame()[:4] == pack(">i", 1)
    finally:
        closed_quietly(writers)


def test_a_long_pipeline_is_answered_whole_and_in_order(node: WatchedNode) -> None:
    count = 5_000
    with node.connect() as client:
        topic = make_topic(client)
        client.send(b"".join(encode_request(MetadataRequest(topics=[]), 1, number, "raw") for number in range(count)))
        with bystander(node, slowest_s=3.0):
            for number in range(count):
                assert client.receive_frame()[:4] == pack(">i", number)
        assert produce(client, topic, some_batch()).error_code == 0


def test_a_mixed_crowd_of_attackers_leaves_a_client_in_peace(node: WatchedNode) -> None:
    rng = random.Random(3)
    bad_frames = list(BAD_FRAMES.values())
    attackers = 0
    with bystander(node) as other:
        while (attackers < CROWD or len(other.rounds) <= 50) and other.is_alive():
            attacker: RawClient = node.connect()
            attacker.send(rng.choice(bad_frames))
            attacker.close()
            attackers += 1


def test_hostile_frames_of_every_api_leave_memory_as_it_was(node: WatchedNode) -> None:
    """The beginning of what `tests.faults.hostile_frames` sends for longer: the second half costs no memory."""
    source = frames(seed=1)
    send_all([node.address], source, HOSTILE)
    before = node.resident_bytes()
    with bystander(node):
        send_all([node.address], source, HOSTILE)
    assert node.resident_bytes() < before + SLACK_BYTES
