"""A user's first look at the composed cluster, and an operator's: clients on the host, secrets, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import UnknownBrokerIdError

from bench.demo.history import look
from tests.compose.compose_project import BROKERS, IMAGE, ROOT, ComposeProject

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
NODES = [f"{role}-{number}" for role in ("controller", "broker") for number in range(3)]
LIST_SECRETS = "ls -A /run/tidelog /run/object-store"


def create(project: ComposeProject, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": project.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=3, config=configs)])[topic].result(30)


def produce(project: ComposeProject, topic: str, count: int, size: int = 100) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": project.bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    key=str(number),
                    value=str(number).encode().ljust(size, b"."),
                    on_delivery=lambda error, _message: failures.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert not failures


def consume(project: ComposeProject, topic: str, count: int, timeout_s: float = 90.0) -> list[int]:
    consumer = Consumer({"bootstrap.servers": project.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(3)])
    found: list[int] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            if message.error():
                raise KafkaException(message.error())
            key = message.key()
            assert key is not None
            found.append(int(key))
    consumer.close()
    return sorted(found)


def test_clients_on_the_host_reach_every_broker_by_its_own_address(project: ComposeProject) -> None:
    found = AdminClient({"bootstrap.servers": project.bootstrap}).list_topics(timeout=30).brokers
    assert {broker.id: f"{broker.host}:{broker.port}" for broker in found.values()} == {
        number: f"localhost:{project.ports[number]}" for number in range(BROKERS)
    }
    create(project, "first")
    produce(project, "first", 3_000)
    assert consume(project, "first", 3_000) == list(range(3_000))


def test_each_partition_has_a_replica_in_each_rack(project: ComposeProject) -> None:
    create(project, "racks")
    topics = AdminClient({"bootstrap.servers": project.bootstrap}).list_topics("racks", timeout=30).topics
    assert [sorted(partition.replicas) for partition in topics["racks"].partitions.values()] == [[0, 1, 2]] * 3


def test_secrets_are_drawn_anew_and_seen_by_their_users_alone(project: ComposeProject) -> None:
    names = "/cluster/cluster.secret /store/user /store/password /store/credentials /cluster/tls/ca.pem"
    names += "".join(f" /cluster/tls/{node}.pem" for node in NODES)
    modes = project.in_volumes(f"stat -c '%a %U %n' {names}").strip().split("\n")
    assert modes == [f"600 tidelog {name}" for name in names.split()]
    values = project.in_volumes("cat /cluster/cluster.secret; echo; cat /store/user; echo; cat /store/password").split()
    assert len(set(values)) == 3 and min(map(len, values)) >= 16
    shown = project.compose("config") + project.compose("logs", "--no-color")
    for service in [*NODES, "minio"]:
        shown += project.docker("inspect", project.container(service))
    assert not [value for value in values if value in shown]
    mounted = {
        service: [mount["Name"] for mount in project.inspect(service)["Mounts"] if "Name" in mount]  # type: ignore[attr-defined]
        for service in ("minio", "bucket", *NODES)
    }
    held = {name for service in ("minio", "bucket") for name in mounted[service]}
    assert not [name for name in held if name.endswith("cluster-secret")]
    assert not [name for names in mounted.values() for name in names if name.endswith("authority")]


def test_nodes_speak_to_each_other_over_mutual_tls_alone(project: ComposeProject) -> None:
    """The listener for nodes, and the voters' own, take nobody who shows no certificate of the cluster's authority."""
    ask = (
        "import socket, ssl, sys\n"
        "context = ssl.create_default_context(cafile='/run/tidelog/tls/ca.pem')\n"
        "if sys.argv[1]: context.load_cert_chain(sys.argv[1])\n"
        "for host, port in (('broker-1', 9190), ('controller-1', 9190), ('controller-1', 9191)):\n"
        "    raw = socket.create_connection((host, port), 10)\n"
        "    raw.settimeout(2)\n"
        "    with context.wrap_socket(raw, server_hostname=host) as link:\n"
        "        try: link.send(b'x'); print(link.recv(1) and 'spoke')\n"
        "        except TimeoutError: print('waits')\n"
        "        except ssl.SSLError as error: print(error.reason)\n"
    )
    run = ("exec", "-T", "broker-0", "python", "-c", ask)
    assert project.compose(*run, "").split() == ["TLSV13_ALERT_CERTIFICATE_REQUIRED"] * 3
    known = project.compose(*run, "/run/tidelog/tls/broker-0.pem").split()
    assert "TLSV13_ALERT_CERTIFICATE_REQUIRED" not in known and len(known) == 3


def test_nodes_run_without_privileges_and_no_secret_lies_in_the_image(project: ComposeProject) -> None:
    for service in NODES:
        assert project.compose("exec", "-T", service, "id", "-u").strip() == "10001"
    listed = project.docker("run", "--rm", "--entrypoint", "sh", IMAGE, "-c", "ls -A /run/tidelog /run/object-store")
    assert listed.split() == ["/run/object-store:", "/run/tidelog:"]


def test_a_node_without_a_secret_refuses_to_start() -> None:
    settings = {"TIDELOG_NODE_ID": "0", "TIDELOG_CLUSTER_SECRET_FILE": "/run/tidelog/cluster.secret"}
    settings |= {
        "TIDELOG_CONTROLLER_QUORUM_VOTERS": "1000@controller-0:9190",
        "TIDELOG_INTERNAL_ALLOW_PLAINTEXT": "true",
    }
    settings |= {"TIDELOG_LISTENERS": "HOST://127.0.0.1:9092,INTERNAL://127.0.0.1:9190"}
    words = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    command = ["docker", "run", "--rm", *words, IMAGE, "broker"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "tidelog.cluster.secret.file" in done.stderr


def test_a_killed_broker_is_started_again_and_nothing_is_lost(project: ComposeProject) -> None:
    create(project, "killed")
    produce(project, "killed", 2_000)
    before = project.inspect("broker-1")["State"]
    assert isinstance(before, dict)
    os.kill(before["Pid"], signal.SIGKILL)  # docker's own kill would count as a wish that it stay down
    produce(project, "killed", 2_000)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = project.inspect("broker-1")["State"]
        assert isinstance(state, dict)
        if state["Pid"] not in (0, before["Pid"]) and state["Health"]["Status"] == "healthy":
            break
        time.sleep(0.5)
    else:
        pytest.fail("broker-1 did not come back")
    assert consume(project, "killed", 4_000) == sorted([*range(2_000), *range(2_000)])


def wait_tiered(project: ComposeProject, topic: str, records: int) -> int:
    """Until at least so many records are in the object store; how many are."""
    deadline = time.monotonic() + 90
    while (found := tiered(project, topic)) < records:
        assert time.monotonic() < deadline, f"{found} of {records} records are in the object store"
        time.sleep(0.5)
    return found


def tiered(project: ComposeProject, topic: str) -> int:
    """By a client of its own: one that looked while a broker was fenced does not find it for minutes."""
    admin = KafkaAdminClient(bootstrap_servers=project.bootstrap.split(","))
    try:
        return look(admin, topic, 3).tiered
    except UnknownBrokerIdError:
        return 0
    finally:
        admin.close()


def test_history_reaches_the_object_store_and_its_outage_harms_nobody(project: ComposeProject) -> None:
    create(project, "tiered", **{"remote.storage.enable": "true", "segment.bytes": str(1 << 20)})
    produce(project, "tiered", 6_000, size=1_000)
    before = wait_tiered(project, "tiered", 1_000)
    project.compose("stop", "minio")
    try:
        produce(project, "tiered", 6_000, size=1_000)
        assert consume(project, "tiered", 12_000) == sorted([*range(6_000), *range(6_000)])
    finally:
        project.compose("up", "--detach", "--wait", "minio")
    assert wait_tiered(project, "tiered", before + 1_000) > before


def test_down_and_up_keep_records_and_secrets(project: ComposeProject) -> None:
    create(project, "kept")
    produce(project, "kept", 1_000)
    drawn = project.in_volumes("cat /cluster/cluster.secret /store/credentials | sha256sum")
    project.compose("down", "--timeout", "40", timeout_s=200)
    project.up()
    assert project.in_volumes("cat /cluster/cluster.secret /store/credentials | sha256sum") == drawn
    assert consume(project, "kept", 1_000) == list(range(1_000))
