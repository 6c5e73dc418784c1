"""Those who pose as a node: refused on the clients' listener, and cut off where nodes talk among themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from bench.embedded import EmbeddedCluster
from common.errors import ErrorCode
from tests.faults.raw_client import RawClient, closed_quietly, wait_until
from tests.faults.watched_node import (
    WatchedNode,
    bystander,
    fetch_request,
    make_topic,
    produce,
    rows,
    some_batch,
)
from tidelog.cluster.layout import SECRET_FILE, load_layout
from wire.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest
from wire.node_auth import Acceptor, AuthenticationFailed, Initiator

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]

SECRET_OF_ANOTHER = b"the secret of quite another cluster"
CROWD = 300
JUNK = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "a kafka request": pack(">ihhih", 10, 18, 0, 1, -1),
    "negative length": b"\xff\xff\xff\xff",
    "a hello of the wrong size": pack(">i", 12) + b"TIDENODE" + b"1234",
    "nothing but a length": pack(">i", 1 << 30),
}


@pytest.fixture
def controller(tight_cluster: EmbeddedCluster) -> Iterator[WatchedNode]:
    controller = WatchedNode(tight_cluster, "controller-0")
    yield controller
    assert controller.is_same_process
    assert not controller.complaints()


def test_a_replicas_fetch_from_a_client_is_refused_and_moves_nothing(node: WatchedNode) -> None:
    with node.connect() as client:
        topic = make_topic(client)
        produce(client, topic, some_batch())
    for replica in (0, 1, 7, 2**31 - 1):
        for version in (4, 11, 12):
            with node.connect() as intruder:
                answer = intruder.ask(fetch_request(topic, replica=replica, offset=1), version)
                codes = {answer.error_code} if version >= 7 else set()
                codes |= {part.error_code for row in answer.responses for part in row.partitions}
                assert codes <= {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
                assert not any(part.records for row in answer.responses for part in row.partitions)
                assert intruder.is_closed_by_peer()


def test_a_replicas_questions_from_a_client_are_refused(node: WatchedNode) -> None:
    with node.connect() as client:
        topic = make_topic(client)
        produce(client, topic, some_batch())
        of = ListOffsetsRequest.ListOffsetsTopic
        asked = of(name=topic, partitions=[of.ListOffsetsPartition(partition_index=0, timestamp=-1)])
        listed = client.ask(ListOffsetsRequest(replica_id=1, isolation_level=0, topics=[asked]), 2)
        assert listed.topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        by = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = by.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        told = client.ask(OffsetForLeaderEpochRequest(replica_id=1, topics=[by(topic=topic, partitions=[part])]), 3)
        assert told.topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("name", JUNK)
def test_junk_on_the_nodes_listeners_is_cut_off_with_one_line(
    node: WatchedNode, controller: WatchedNode, name: str
) -> None:
    for target in (node, controller):
        with RawClient(target.internal_address) as intruder:
            intruder.send(JUNK[name])
            assert intruder.is_closed_by_peer()
            assert target.one_line_about(intruder.name)["event"] == "connection closed"


def test_another_secret_opens_nothing(node: WatchedNode, controller: WatchedNode) -> None:
    for target in (node, controller):
        with RawClient(target.internal_address) as intruder:
            initiator = Initiator(SECRET_OF_ANOTHER, "", random.Random(1))
            intruder.send_frame(initiator.hello())
            challenge = intruder.receive_frame()
            with pytest.raises(AuthenticationFailed):
                initiator.prove(challenge)
            intruder.send_frame(bytes(32))
            assert intruder.is_closed_by_peer()
            assert "node authentication" in target.one_line_about(intruder.name)["reason"]


def test_a_reflected_challenge_proves_nothing(node: WatchedNode, tight_cluster: EmbeddedCluster) -> None:
    """Not even one that a true acceptor made: it is bound to the other role and to both nonces."""
    secret = (tight_cluster.data / SECRET_FILE).read_bytes().strip()
    with RawClient(node.internal_address) as intruder:
        hello = Initiator(secret, "", random.Random(1)).hello()
        intruder.send_frame(hello)
        challenge = intruder.receive_frame()
        echo = Acceptor(secret, "", random.Random(2)).challenge(b"TIDENODE" + challenge[:32])
        intruder.send_frame(echo[32:])
        assert intruder.is_closed_by_peer()


def test_junk_on_the_quorums_port_disturbs_no_voter(tight_cluster: EmbeddedCluster, controller: WatchedNode) -> None:
    layout = load_layout(tight_cluster.data)
    assert layout is not None
    address = f"127.0.0.1:{layout.controllers[0].quorum_port}"
    for junk in (*JUNK.values(), random.Random(4).randbytes(5_000)):
        with RawClient(address) as intruder:
            intruder.send(junk)
            assert intruder.is_closed_by_peer()
    with WatchedNode(tight_cluster).connect() as client:
        make_topic(client)
    refusals = [line for line in controller.log_lines() if "quorum" in line.get("event", "")]
    assert len(refusals) == len(JUNK) + 1


def test_a_silent_crowd_on_the_nodes_listeners_keeps_no_node_out(
    tight_cluster: EmbeddedCluster, node: WatchedNode, controller: WatchedNode
) -> None:
    layout = load_layout(tight_cluster.data)
    assert layout is not None
    quorum = f"127.0.0.1:{layout.controllers[0].quorum_port}"
    crowd = [
        RawClient(address)
        for _ in range(CROWD)
        for address in (node.internal_address, controller.internal_address, quorum)
    ]
    try:
        with bystander(node):
            pass
        tight_cluster.command("kill", "broker-0")
        tight_cluster.command("start", "broker-0")  # it has to register through that crowd
        wait_until(lambda: all(row["state"] == "running" for row in rows(tight_cluster)))
        node.follow()
        with bystander(node):
            pass
    finally:
        closed_quietly(crowd)


def test_no_log_and_no_page_tells_the_secret(tight_cluster: EmbeddedCluster) -> None:
    secret = (tight_cluster.data / SECRET_FILE).read_text().strip()
    assert len(secret) >= 32
    texts = [path.read_text(errors="replace") for path in (tight_cluster.data / "logs").iterdir()]
    texts.append(tight_cluster.command("ps", "--json"))
    texts.append((tight_cluster.data / "cluster.json").read_text())
    texts += [Path(f"/proc/{row['pid']}/cmdline").read_text() for row in rows(tight_cluster)]
    for text in texts:
        assert secret not in text
        assert secret[:16] not in text
    assert (tight_cluster.data / SECRET_FILE).stat().st_mode & 0o077 == 0
