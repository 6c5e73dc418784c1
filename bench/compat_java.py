"""`make compat-java`: Apache Kafka's own programs against a cluster, and its dump tool against the files.

The Java clients (console producer and consumer, topics, groups, configs, reassignment and election tools, and those of
`compat_operations`) work on a running cluster; then DumpLogSegments reads the segments, indexes, time indexes and
producer snapshots that it left behind, and our storage opens a partition directory that a real Apache Kafka wrote.
Ends 0 only if each step held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.compat_operations import (
    client_metrics,
    delegation_tokens,
    epoch_floor,
    eventually,
    features,
    internal_topics,
    log_directories,
    quorum,
    transactions,
)
from bench.embedded import EmbeddedCluster
from bench.java_programs import TIMEOUT_S, VERSIONS, JavaTools, expect, program_jars
from bench.kafka_directory import check_foreign_directory
from bench.peers import MissingTool
from bench.tenant_clients import client_configuration
from tidelog.cluster.client_files import read_key
from tidelog.cluster.local_names import hosts_line, names_of

RECORDS, VALUE_BYTES = 6_000, 1_000  # enough for several segments of the smallest size that Kafka's tools allow


def topics(java: JavaTools) -> None:
    java.tool("TopicCommand", "--create", "--topic", "java", "--partitions", "3", "--replication-factor", "3",
              "--config", "segment.bytes=1048576", "--config", "min.insync.replicas=2")  # fmt: skip
    expect("java" in java.tool("TopicCommand", "--list").split(), "the topic is listed")
    described = java.tool("TopicCommand", "--describe", "--topic", "java")
    expect("PartitionCount: 3" in described and described.count("Isr: ") == 3, "the topic is described")
    java.tool("TopicCommand", "--alter", "--topic", "java", "--partitions", "4")
    expect("PartitionCount: 4" in java.tool("TopicCommand", "--describe", "--topic", "java"), "it has 4 partitions")


def configs(java: JavaTools) -> None:
    command = "kafka.admin.ConfigCommand"
    where = ("--bootstrap-server", java.bootstrap, "--entity-type", "topics", "--entity-name", "java")
    java.run(command, *where, "--alter", "--add-config", "retention.ms=86400000")
    described = java.run(command, *where, "--describe")
    expect("retention.ms=86400000" in described, "the changed setting is described")
    java.run(command, *where, "--alter", "--delete-config", "retention.ms")
    expect("retention.ms" not in java.run(command, *where, "--describe"), "the setting is back to its default")


def broker_loggers(java: JavaTools) -> None:
    """kafka-configs shows and changes the levels of one broker's loggers, until the change is removed."""
    one = ("kafka.admin.ConfigCommand", "--bootstrap-server", java.bootstrap, "--entity-type", "broker-loggers",
           "--entity-name", "1")  # fmt: skip

    def level() -> str:
        found = re.search(r"(?m)^ *broker\.dispatch=(\w+)", java.run(*one, "--describe"))
        return found.group(1) if found else "none"

    expect(level() == "INFO", f"a logger's level is that of the node: {level()}")
    java.run(*one, "--alter", "--add-config", "broker.dispatch=DEBUG,broker.node=WARN")
    expect(level() == "DEBUG", f"the changed level is described: {level()}")
    java.run(*one, "--alter", "--delete-config", "broker.dispatch,broker.node")
    expect(level() == "INFO", f"the level is back: {level()}")


def scram_users(java: JavaTools) -> None:
    """kafka-configs gives a user a password, shows how it is kept, and takes it away."""
    where = ("kafka.admin.ConfigCommand", "--bootstrap-server", java.bootstrap, "--entity-type", "users")
    one = (*where, "--entity-name", "carol")
    kept = "SCRAM credential configs for user-principal 'carol' are SCRAM-SHA-512=iterations=8192"
    java.run(*one, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=of-this-run]")
    expect(kept in java.run(*where, "--describe"), "the user is shown with the iterations that were asked for")
    java.run(*one, "--alter", "--delete-config", "SCRAM-SHA-512")
    expect("SCRAM credential" not in java.run(*where, "--describe"), "no user is left")


QUOTA_ENTITIES = {
    "user-principal 'ann'": "users ann",
    "the default user-principal": "users *",
    "client-id 'app'": "clients app",
    "the default client-id": "clients *",
    "user-principal 'ann', client-id 'app'": "users ann clients app",
    "user-principal 'ann', the default client-id": "users ann clients *",
    "the default user-principal, client-id 'app'": "users * clients app",
    "the default user-principal, the default client-id": "users * clients *",
    "ip '127.0.0.9'": "ips 127.0.0.9",
    "the default ip": "ips *",
}
"""What kafka-configs calls each kind of entity, and the entity's types and names; `*` stands for its default."""


def entity_options(words: str) -> list[str]:
    """`users ann clients *` as kafka-configs wants it."""
    kinds, names = words.split()[::2], words.split()[1::2]
    options = [part for kind in kinds for part in ("--entity-type", kind)]
    return options + [part for n in names for part in (["--entity-default"] if n == "*" else ["--entity-name", n])]


def quotas(java: JavaTools) -> None:
    """kafka-configs sets, shows and removes quotas of every kind of entity. None of them holds a client of this run."""
    command = ("kafka.admin.ConfigCommand", "--bootstrap-server", java.bootstrap)

    def described() -> str:
        kinds = ("users", "clients", "users clients", "ips")
        asked = [[part for kind in found.split() for part in ("--entity-type", kind)] for found in kinds]
        return "".join(java.run(*command, "--describe", *options) for options in asked)

    keys = {
        name: "connection_creation_rate" if words.startswith("ips") else "consumer_byte_rate"
        for name, words in QUOTA_ENTITIES.items()
    }
    bounds = {name: 1_000_000_000 + number for number, name in enumerate(QUOTA_ENTITIES)}
    for name, words in QUOTA_ENTITIES.items():
        java.run(*command, "--alter", *entity_options(words), "--add-config", f"{keys[name]}={bounds[name]}")
    shown = dict(re.findall(r"(?m)^Quota configs for (.*) are (.*)$", described()))
    expect(set(shown) == set(QUOTA_ENTITIES), f"each kind of entity is shown: {sorted(shown)}")
    for name, text in shown.items():
        key, bound = text.split("=")
        expect((key, float(bound)) == (keys[name], bounds[name]), f"{name} has what was set: {text}")
    for name, words in QUOTA_ENTITIES.items():
        java.run(*command, "--alter", *entity_options(words), "--delete-config", keys[name])
    expect("Quota configs for" not in described(), "no quota is left")


def values_in(out: str) -> list[str]:
    """The values that a console consumer printed; newer ones print remarks about their options as well."""
    return sorted(word for word in out.split() if word.startswith("value-"))


def value(number: int) -> str:
    """Distinct and of a fixed length."""
    return f"value-{number}-".ljust(VALUE_BYTES, "x")


def produce_and_consume(java: JavaTools) -> None:
    lines = "".join(f"key-{n}:{value(n)}\n" for n in range(RECORDS))
    java.tool("ConsoleProducer", "--topic", "java", "--property", "parse.key=true",
              "--property", "key.separator=:", feed=lines)  # fmt: skip
    out = java.tool("consumer.ConsoleConsumer", "--topic", "java", "--group", "java-group", "--from-beginning",
                    "--max-messages", str(RECORDS), "--timeout-ms", "30000")  # fmt: skip
    expect(values_in(out) == sorted(value(n) for n in range(RECORDS)), "every record is read back")
    described = java.tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "java-group")
    expect("java-group" in described, "the group is described")
    expect("java-group" in java.tool("consumer.group.ConsumerGroupCommand", "--list"), "the group is listed")
    reset = ("--reset-offsets", "--group", "java-group", "--topic", "java", "--to-earliest", "--execute")
    java.tool("consumer.group.ConsumerGroupCommand", *reset)
    java.tool("consumer.group.ConsumerGroupCommand", "--delete", "--group", "java-group")
    offsets = java.tool("GetOffsetShell", "--topic", "java")
    expect(sum(int(line.split(":")[2]) for line in offsets.split()) == RECORDS, "the end offsets add up")


def replicas(java: JavaTools) -> list[list[int]]:
    """Those of each partition of the topic, in order."""
    described = java.tool("TopicCommand", "--describe", "--topic", "java")
    return [[int(b) for b in found.split(",")] for found in re.findall(r"Replicas: ([0-9,]+)", described)]


def reassign(java: JavaTools) -> None:
    """kafka-reassign-partitions: throttled, verified to its end, listed, cancelled; then kafka-leader-election."""
    command = "reassign.ReassignPartitionsCommand"
    with tempfile.TemporaryDirectory(prefix="tidelog-plan-") as folder:
        plan = Path(folder) / "plan.json"

        def write(wanted: list[list[int]]) -> None:
            partitions = [{"topic": "java", "partition": n, "replicas": r} for n, r in enumerate(wanted)]
            plan.write_text(json.dumps({"version": 1, "partitions": partitions}))

        def run(*options: str) -> str:
            return java.tool(command, *options)

        before = replicas(java)
        wanted = [[row[1], row[0]] for row in before]
        write(wanted)
        executed = run("--reassignment-json-file", str(plan), "--execute", "--throttle", "50000000")
        expect("Successfully started" in executed, "the reassignment starts")
        deadline = time.monotonic() + TIMEOUT_S
        while "is still in progress" in (verified := run("--reassignment-json-file", str(plan), "--verify")):
            expect(time.monotonic() < deadline, "the reassignment ends")
        expect(verified.count("is completed") >= len(wanted), "the reassignment is verified")
        expect("Clearing broker-level throttles" in verified, "the throttles are cleared")
        expect(replicas(java) == wanted, "the replicas are where they were wanted")
        topics_file = Path(folder) / "topics.json"
        topics_file.write_text(json.dumps({"version": 1, "topics": [{"topic": "java"}]}))
        generated = run("--topics-to-move-json-file", str(topics_file), "--broker-list", "0,1,2", "--generate")
        expect("Proposed partition reassignment" in generated, "a plan is generated")
        write(before)
        run("--reassignment-json-file", str(plan), "--execute", "--throttle", "1000")
        listed = run("--list")
        expect(" partition reassignments" in listed, "what runs is listed")
        run("--reassignment-json-file", str(plan), "--cancel")
        expect("No partition reassignments found" in run("--list"), "what was cancelled does not run")
    everywhere = ("--election-type", "preferred", "--all-topic-partitions")
    java.tool("LeaderElectionCommand", *everywhere)

    def all_lead() -> bool:
        described = java.tool("TopicCommand", "--describe", "--topic", "java")
        leaders = [int(found) for found in re.findall(r"Leader: ([0-9]+)", described)]
        return leaders == [row[0] for row in replicas(java)]

    eventually(all_lead, "every preferred replica leads")


def delete(java: JavaTools) -> None:
    java.tool("TopicCommand", "--create", "--topic", "gone", "--partitions", "1")
    java.tool("TopicCommand", "--delete", "--topic", "gone")
    expect("gone" not in java.tool("TopicCommand", "--list").split(), "the deleted topic is gone")


def over_tls(jars: Path, cluster: EmbeddedCluster, folder: Path) -> None:
    """The console clients on the brokers' SSL listeners, with the authority and a certificate of their own as PEM."""
    tls, config = cluster.data / "tls", folder / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={tls / 'ca.pem'}\nssl.keystore.location={tls / 'client.pem'}\n"
    )
    java = JavaTools(jars, cluster.secure_bootstrap)
    java.tool("TopicCommand", "--command-config", str(config), "--create", "--topic", "secure", "--partitions", "3")
    lines = [value(number) for number in range(RECORDS)]
    java.tool(
        "ConsoleProducer", "--topic", "secure", "--producer.config", str(config), feed="".join(f"{x}\n" for x in lines)
    )
    out = java.tool("consumer.ConsoleConsumer", "--topic", "secure", "--consumer.config", str(config),
                    "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "30000")  # fmt: skip
    expect(values_in(out) == sorted(lines), "every record is read back over TLS")
    delegation_tokens(java, config)


def as_tenant(jars: Path, cluster: EmbeddedCluster, folder: Path) -> None:
    """The tools through the proxy over TLS, as the tenant `java` and with the file that `tidelog up` made for it."""
    config, hosts = cluster.tenant_file("java", "java.properties"), folder / "hosts"
    tenant_id = read_key(cluster.tenant_file("java", "key"))[2]
    bootstrap = client_configuration(cluster.tenant_file("java"))["bootstrap.servers"]
    domain = bootstrap.partition(".")[2].rpartition(":")[0]
    hosts.write_text(hosts_line(names_of(tenant_id, range(3), domain)) + "\n")
    java = JavaTools(jars, bootstrap, f"-Djdk.net.hosts.file={hosts}")
    as_admin = ("--command-config", str(config))
    java.tool("TopicCommand", *as_admin, "--create", "--topic", "java", "--partitions", "3")
    expect(java.tool("TopicCommand", *as_admin, "--list").split() == ["java"], "a tenant lists its own topics alone")
    lines = [value(number) for number in range(RECORDS)]
    java.tool("ConsoleProducer", "--topic", "java", "--producer.config", str(config), feed="\n".join(lines) + "\n")
    out = java.tool("consumer.ConsoleConsumer", "--topic", "java", "--consumer.config", str(config), "--group", "own",
                    "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "30000")  # fmt: skip
    expect(values_in(out) == sorted(lines), "every record is read back through the proxy")
    groups = java.tool("consumer.group.ConsumerGroupCommand", *as_admin, "--list").split()
    expect(groups == ["own"], "a tenant lists its own groups alone")


def dump(java: JavaTools, data: Path) -> str:
    """Kafka's own reader over every file of the topic on one broker that has been stopped; what it has read."""
    seen: dict[str, int] = {}
    for partition in sorted((data / "broker-0").glob("java-*")):
        if partition.name.endswith("-delete"):  # a reassignment moved it away; it waits for `file.delete.delay.ms`
            continue
        files = [
            file
            for file in sorted(partition.iterdir())
            if file.suffix in (".log", ".index", ".timeindex", ".snapshot") and file.stat().st_size
        ]
        out = java.run("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, files)))
        for file, dumped in zip(files, re.split(r"(?m)^Dumping ", out)[1:], strict=True):
            wrong = re.search(r"(?i)mismatch|corrupt|invalid|non-consecutive|isvalid: false|not found", dumped)
            expect(not wrong, f"{file.name} of {partition.name} is as Apache Kafka writes it: {dumped[-400:]}")
            expect("offset" in dumped or "producerId" in dumped, f"{file.name} has content")
            seen[file.suffix] = seen.get(file.suffix, 0) + 1
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        expect(seen.get(suffix), f"there is a {suffix} to read")
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(seen.items()))


def run_all(jars: Path, version: str) -> None:
    """Every step with the programs of one version of Apache Kafka."""
    began = time.monotonic()

    def held(what: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  ok: {what}, Apache Kafka {version}", flush=True)

    with tempfile.TemporaryDirectory(prefix="tidelog-java-") as folder:
        data = Path(folder) / "data"
        settings = {"group.initial.rebalance.delay.ms": "100", "ssl.client.auth": "required"}
        with EmbeddedCluster(data=data, settings=settings, tls=True, proxies=1, tenants=("java",)) as cluster:
            java = JavaTools(jars, cluster.bootstrap)
            steps: list[tuple[str, Callable[[JavaTools], None]]] = [
                ("topics", topics),
                ("configs", configs),
                ("loggers of a broker", broker_loggers),
                ("users with SCRAM passwords", scram_users),
                ("quotas", quotas),
                ("produce and consume in a group", produce_and_consume),
                ("reassign and elect", reassign),
                ("delete", delete),
                ("transactions", transactions),
                ("quorum", quorum),
                ("features", features),
                ("log directories", log_directories),
            ]
            for name, step in steps:
                step(java)
                held(name)
            pages = [row["metrics"] for row in cluster.nodes() if row["role"] == "broker"]
            client_metrics(java, [f"http://{page}/metrics" for page in pages])
            held("client metrics")
            over_tls(jars, cluster, Path(folder))
            held("produce and consume, delegation tokens, over mutual TLS")
            as_tenant(jars, cluster, Path(folder))
            held("topics, groups, produce and consume as a tenant")
            decoded = internal_topics(java, data / "broker-1")
            epoch_floor(java)
            held(f"DumpLogSegments decodes {decoded}")
            cluster.command("stop", "broker-0")
            held(f"DumpLogSegments reads what Tidelog wrote: {dump(java, data)}")
        count = check_foreign_directory(jars, Path(folder) / "kafka")
        held(f"Tidelog's storage serves {count} records of a directory that it wrote")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="append", choices=VERSIONS, help=f"of the programs; {VERSIONS[0]} by default")
    parser.add_argument("--long", action="store_true", help=f"with all of {', '.join(VERSIONS)}")
    options = parser.parse_args()
    for version in options.kafka or (VERSIONS if options.long else VERSIONS[:1]):
        try:
            jars = program_jars(version)
        except MissingTool as missing:
            print(f"compat-java not run: {missing}")
            return 0 if os.environ.get("CI") else 2
        run_all(jars, version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
