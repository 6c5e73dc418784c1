"""Apache Kafka's tools for operators: transactions, quorum, features, client metrics, log directories, tokens.

Each subcommand works, or is refused for the reason that `docs/operations.md` gives.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bench.java_programs import TIMEOUT_S, JavaTools, expect
from broker.coordination.transactions.records import encode_value, epoch_floor_record, transaction_record
from broker.coordination.transactions.values import Transaction
from records.builder import build_batch
from records.record import Record
from tidelog.admin.listener_probe import ask
from wire.messages import ProduceRequest

TOPIC = "ledger"
IDS = ("t-open", "t-forced", "t-aborted")
HANGING_PRODUCER = 4_000_000_001
CONTROLLER = 1000
OLDER_PRODUCE = 11


def _table(text: str) -> list[dict[str, str]]:
    """The rows of a tool's table, by the names of its columns."""
    lines = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines() if "\t" in line]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def eventually(holds: Callable[[], object], meaning: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        expect(time.monotonic() < deadline, meaning)
        time.sleep(0.2)


# transactions ------------------------------------------------------------------------------------------------


def _open_transaction(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(TOPIC, name.encode(), partition=partition)
    expect(producer.flush(TIMEOUT_S) == 0, f"the transaction of {name} is open")
    return producer


def transactions(java: JavaTools) -> None:
    """kafka-transactions.sh: list, describe, describe-producers, forceTerminateTransaction, find-hanging, abort."""
    java.tool("TopicCommand", "--create", "--topic", TOPIC, "--partitions", "2", "--replication-factor", "3")
    producers = {name: _open_transaction(java.bootstrap, name) for name in IDS}
    done = _open_transaction(java.bootstrap, "s-done")
    done.commit_transaction(TIMEOUT_S)

    def run(*options: str) -> list[dict[str, str]]:
        return _table(java.tool("TransactionsCommand", *options))

    def states(*options: str) -> dict[str, str]:
        return {row["TransactionalId"]: row["TransactionState"] for row in run("list", *options)}

    opened = dict.fromkeys(IDS, "Ongoing")
    listed = states()
    expect({name: listed.get(name) for name in IDS} == opened, f"open transactions are listed: {listed}")
    expect(listed.get("s-done") in ("PrepareCommit", "CompleteCommit"), f"a committed one is listed: {listed}")
    expect(states("--transactional-id-pattern", "t-.*") == opened, "a pattern chooses among them")
    expect(not states("--duration-filter", "3600000"), "none is open for an hour")
    (row,) = run("describe", "--transactional-id", "t-open")
    expect(set(row["TopicPartitions"].split(",")) == {f"{TOPIC}-0", f"{TOPIC}-1"}, f"its partitions are shown: {row}")
    unknown = java.refused("TransactionsCommand", "describe", "--transactional-id", "t-unknown")
    expect("could not be found" in unknown, f"an unknown id is not described: {unknown}")
    _each_replica_describes(run)
    java.tool("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", "t-forced")
    _fenced(producers["t-forced"])
    eventually(lambda: states()["t-forced"] == "Empty", "a terminated transaction has ended")
    start = _offset_of(run, row_of="t-aborted")
    java.tool("TransactionsCommand", "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", start)
    open_offsets = [row["CurrentTransactionStartOffset"] for row in _producers(run)]
    expect(start not in open_offsets, f"what was aborted is not open: {open_offsets}")
    _hanging(java, run)
    producers["t-open"].commit_transaction(TIMEOUT_S)


def _producers(run: Callable[..., list[dict[str, str]]], *options: str) -> list[dict[str, str]]:
    return run("describe-producers", "--topic", TOPIC, "--partition", "0", *options)


def _each_replica_describes(run: Callable[..., list[dict[str, str]]]) -> None:
    led = {row["ProducerId"]: row for row in _producers(run)}
    expect(len(led) == len(IDS) + 1, f"the leader describes its producers: {led}")
    for broker in "012":
        rows = {row["ProducerId"]: row for row in _producers(run, "--broker-id", broker)}
        expect(rows == led, f"broker {broker} describes the same: {rows}")


def _offset_of(run: Callable[..., list[dict[str, str]]], row_of: str) -> str:
    (described,) = run("describe", "--transactional-id", row_of)
    found = [row for row in _producers(run) if row["ProducerId"] == described["ProducerId"]]
    return found[0]["CurrentTransactionStartOffset"]


def _fenced(producer: Producer) -> None:
    with contextlib.suppress(KafkaException):
        producer.commit_transaction(TIMEOUT_S)
        expect(False, "the producer of a terminated transaction is fenced")


def _hanging(java: JavaTools, run: Callable[..., list[dict[str, str]]]) -> None:
    """A transaction that no coordinator knows is found and aborted. Only leaders that do not verify let one begin."""
    with _without_verification(java):
        eventually(lambda: _append_hanging(java.bootstrap) == 0, "a leader that does not verify takes the batch")

    def hanging() -> list[dict[str, str]]:
        found = (run("find-hanging", "--broker-id", broker, "--max-transaction-timeout", "0") for broker in "012")
        return [row for rows in found for row in rows]

    rows = hanging()
    wanted = {(TOPIC, "1", str(HANGING_PRODUCER))}
    expect({(row["Topic"], row["Partition"], row["ProducerId"]) for row in rows} == wanted, f"it is found: {rows}")
    java.tool(
        "TransactionsCommand", "abort", "--topic", TOPIC, "--partition", "1", "--producer-id", str(HANGING_PRODUCER),
        "--producer-epoch", rows[0]["ProducerEpoch"], "--coordinator-epoch", rows[0]["CoordinatorEpoch"],
    )  # fmt: skip
    expect(not hanging(), "what was aborted does not hang")


@contextlib.contextmanager
def _without_verification(java: JavaTools) -> Iterator[None]:
    name = "transaction.partition.verification.enable"
    where = ("--bootstrap-server", java.bootstrap, "--entity-type", "brokers", "--entity-default", "--alter")
    java.run("kafka.admin.ConfigCommand", *where, "--add-config", f"{name}=false")
    try:
        yield
    finally:
        java.run("kafka.admin.ConfigCommand", *where, "--delete-config", name)


def _append_hanging(bootstrap: str) -> int:
    """The error code of a transactional batch without a transaction, in the older protocol."""
    batch = build_batch(
        [Record(0, int(time.time() * 1_000), None, b"hanging")],
        producer_id=HANGING_PRODUCER, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    topic = ProduceRequest.TopicProduceData
    rows = [topic(name=TOPIC, partition_data=[topic.PartitionProduceData(index=1, records=bytes(batch))])]
    request = ProduceRequest(transactional_id="t-hanging", acks=-1, timeout_ms=10_000, topic_data=rows)
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, TIMEOUT_S)
    leader = metadata.brokers[metadata.topics[TOPIC].partitions[1].leader]
    with socket.create_connection((leader.host, leader.port), TIMEOUT_S) as sock:
        return int(ask(sock, request, OLDER_PRODUCE).responses[0].partition_responses[0].error_code)


# the cluster -------------------------------------------------------------------------------------------------


def quorum(java: JavaTools) -> None:
    """kafka-metadata-quorum.sh describes; voters are added and removed in the nodes' files alone."""
    command = "MetadataQuorumCommand"
    status = java.tool(command, "describe", "--status")
    leader = re.search(r"LeaderId: +(\d+)", status)
    expect(leader and int(leader[1]) >= CONTROLLER and '"id": 1002' in status, f"leader and voters are shown: {status}")
    rows = _table(java.tool(command, "describe", "--replication"))
    roles = {row["NodeId"]: row["Status"] for row in rows}
    expect(sorted(roles.values()) == ["Follower"] * 2 + ["Leader"] + ["Observer"] * 3, f"each node's role: {roles}")
    expect(max(int(row["Lag"]) for row in rows if row["Status"] != "Observer") < 100, f"voters keep up: {rows}")
    readable = java.tool(command, "describe", "--replication", "--human-readable")
    expect(readable.count("ms ago") == 2 * len(rows), f"times are shown as ages: {readable}")
    options = ("--controller-id", "1002", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAA")
    refused = java.refused(command, "remove-controller", *options)
    expect("does not support REMOVE_RAFT_VOTER" in refused, f"no voter is removed: {refused[:300]}")
    with tempfile.TemporaryDirectory(prefix="tidelog-voter-") as folder:
        (Path(folder) / "meta.properties").write_text(
            "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=1009\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\n"
        )
        config = Path(folder) / "controller.properties"
        config.write_text(
            "process.roles=controller\nnode.id=1009\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=CONTROLLER://127.0.0.1:1\nadvertised.listeners=CONTROLLER://127.0.0.1:1\nlog.dirs={folder}\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:1\nmetadata.log.dir={folder}\n"
        )
        refused = java.refused(command, "--command-config", str(config), "add-controller")
        expect("does not support ADD_RAFT_VOTER" in refused, f"no voter is added: {refused[:300]}")


def features(java: JavaTools) -> None:
    """kafka-features.sh: describe, upgrade, downgrade, disable, version-mapping and feature-dependencies."""
    command, name = "FeatureCommand", "transaction.version"

    def level() -> int:
        found = re.search(rf"{name}.*FinalizedVersionLevel: (\d+)", java.tool(command, "describe"))
        return int(found[1]) if found else -1

    expect(level() == 2, "a new cluster has the newest transactions")
    for words, wanted in (("downgrade", 1), ("upgrade", 2), ("disable", 0), ("upgrade", 2)):
        feature = name if words == "disable" else f"{name}={wanted}"
        java.tool(command, words, "--feature", feature)
        expect(level() == wanted, f"{words} {feature}")
    expect("metadata.version=" in java.tool(command, "version-mapping"), "levels of a release are shown")
    shown = java.tool(command, "feature-dependencies", "--feature", f"{name}=2")
    expect("no dependencies" in shown, f"dependencies are shown: {shown}")
    refused = java.refused(command, "upgrade", "--feature", "group.version=1")
    expect("levels 0 to 0 are supported" in refused, f"what is not supported is refused: {refused}")


def client_metrics(java: JavaTools, pages: Sequence[str]) -> None:
    """kafka-client-metrics.sh subscribes, and a Java client pushes what it measures. `pages`: brokers' metrics."""
    command, name = "ClientMetricsCommand", "consumers"
    chosen = "org.apache.kafka.consumer.fetch.manager."
    java.tool(
        command, "--alter", "--name", name, "--metrics", chosen, "--interval", "200", "--match", "client_id=met.*"
    )
    expect(java.tool(command, "--list").split() == [name], "the subscription is listed")
    described = java.tool(command, "--describe", "--name", name)
    wanted = (f"metrics={chosen}", "interval.ms=200", "match=client_id=met.*")
    expect(all(one in described for one in wanted), f"it is described: {described}")

    def is_shown() -> bool:
        """Whether a consumer's measures are there; one that ends before it has found a node for them pushes none."""
        java.tool("consumer.ConsoleConsumer", "--topic", TOPIC, "--from-beginning", "--timeout-ms", "15000",
                  "--consumer-property", "client.id=metered")  # fmt: skip
        shown = "".join(urllib.request.urlopen(page, timeout=TIMEOUT_S).read().decode() for page in pages)
        ours = [line for line in shown.splitlines() if line.startswith("tidelog_client_metric") and "metered" in line]
        return any(chosen in line and 'client_software_name="apache-kafka-java"' in line for line in ours)

    eventually(is_shown, "a broker shows what the client measured")
    java.tool(command, "--delete", "--name", name)
    expect(not java.tool(command, "--list").split(), "the subscription is gone")


def log_directories(java: JavaTools) -> None:
    """kafka-log-dirs.sh; a replica is where it is wanted, and there is no other directory."""
    answer = java.tool("LogDirsCommand", "--describe", "--topic-list", TOPIC)
    brokers = json.loads(next(line for line in answer.splitlines() if line.startswith("{")))["brokers"]
    paths = {row["broker"]: row["logDirs"][0]["logDir"] for row in brokers}
    expect(sorted(paths) == [0, 1, 2] and all(len(row["logDirs"]) == 1 for row in brokers), f"one each: {answer}")
    sizes = [part["size"] for row in brokers for part in row["logDirs"][0]["partitions"]]
    expect(len(sizes) == 6 and all(sizes), f"each replica has a size: {answer}")
    described = java.tool("TopicCommand", "--describe", "--topic", TOPIC)
    (first, *_) = re.findall(r"Replicas: ([0-9,]+)", described)
    replicas = [int(broker) for broker in first.split(",")]
    command = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file")
    with tempfile.TemporaryDirectory(prefix="tidelog-plan-") as folder:
        plan = Path(folder) / "plan.json"

        def write(directories: list[str]) -> None:
            partition = {"topic": TOPIC, "partition": 0, "replicas": replicas, "log_dirs": directories}
            plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))

        write([paths[broker] for broker in replicas])
        started = java.tool(*command, str(plan), "--execute")
        moves = started.count("Successfully started moving log directory")
        expect(moves == len(replicas), f"its own directory is taken: {started}")
        verified = java.tool(*command, str(plan), "--verify")
        expect(verified.count("completed successfully") == len(replicas), f"and is where it was: {verified}")
        write([folder for _ in replicas])
        refused = java.refused(*command, str(plan), "--execute", "--timeout", "5000")
        expect("LogDirNotFoundException" in refused, f"another directory is refused: {refused}")


def delegation_tokens(java: JavaTools, config: Path) -> None:
    """kafka-delegation-tokens.sh, as with brokers that have no secret key for tokens. It wants a known principal."""
    for options in (
        ("--create", "--max-life-time-period", "-1"),
        ("--renew", "--hmac", "dGlkZWxvZw==", "--renew-time-period", "-1"),
        ("--expire", "--hmac", "dGlkZWxvZw==", "--expiry-time-period", "-1"),
        ("--describe",),
    ):
        refused = java.refused("DelegationTokenCommand", "--command-config", str(config), *options)
        expect("DelegationTokenDisabledException" in refused, f"{options[0]} is refused: {refused[:300]}")


# internal topics ---------------------------------------------------------------------------------------------

TRANSACTION_STATE = "__transaction_state"
DECODERS = {TRANSACTION_STATE: "--transaction-log-decoder", "__consumer_offsets": "--offsets-decoder"}


def internal_topics(java: JavaTools, broker: Path, topics: Sequence[str] = tuple(DECODERS)) -> str:
    """DumpLogSegments decodes each record of these internal topics in a running broker's files; how many it read."""
    seen = []
    for topic in topics:
        files = [str(file) for file in sorted(broker.glob(f"{topic}-*/*.log")) if file.stat().st_size]
        expect(files, f"{topic} has records")
        out = java.run("kafka.tools.DumpLogSegments", DECODERS[topic], "--files", ",".join(files))
        records = [line for line in out.splitlines() if line.startswith("| offset:") and "endTxnMarker" not in line]
        plain = [line for line in records if not re.search(r' key: \{"type":"\d+","data":\{', line)]
        expect(records and not plain, f"each record of {topic} is decoded: {plain[:2]}")
        plain = [line for line in records if not re.search(r' payload: (\{"version":"\d+","data":|<DELETE>)', line)]
        expect(not plain, f"each value of {topic} is decoded: {plain[:2]}")
        seen.append(f"{len(records)} records of {topic}")
    return " and ".join(seen)


def epoch_floor(java: JavaTools) -> None:
    """DumpLogSegments skips the floor of coordinator epochs, a record of ours that a tenant's move leaves among its
    transactional ids, and decodes what is behind it."""
    ids = [transaction_record(name, encode_value(Transaction(7, 0, 60_000), flexible=True)) for name in IDS]
    kept = [Record(0, 0, record.key, record.value) for record in (ids[0], epoch_floor_record(3), *ids[1:])]
    with tempfile.TemporaryDirectory(prefix="tidelog-floor-") as folder:
        file = Path(folder) / f"{TRANSACTION_STATE}-0" / f"{0:020}.log"
        file.parent.mkdir()
        file.write_bytes(build_batch(kept, leader_epoch=0))
        out = java.run("kafka.tools.DumpLogSegments", DECODERS[TRANSACTION_STATE], "--files", str(file))
    rows = [line for line in out.splitlines() if line.startswith("| offset:")]
    decoded = [row for row in rows if '"transactionalId":' in row and '"producerId":7' in row]
    skipped = [row for row in rows if "Unknown record type" in row and "skipping" in row]
    expect((len(decoded), len(skipped)) == (len(IDS), 1), f"the floor is skipped, and nothing else: {out}")
