"""`python -m bench.compat_exactly_once`: Apache Kafka's own exactly-once programs, while clients and brokers die.

Kafka Streams' system tests (StreamsEosTest, StreamsSmokeTest, BrokerCompatibilityTest) and TransactionalMessageCopier;
and producers whose tenant changes cells while they keep a group's offsets pending.
A step holds if the program's own verdict does, and for copies if output is input. The short run takes the newest
programs and kills one client and one broker; `--long` takes all versions and every program, and kills more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import private_hosts
from bench.committed_records import committed_values
from bench.compat_operations import DECODERS, internal_topics
from bench.embedded import EmbeddedCluster
from bench.java_programs import (
    PATIENCE_S,
    TIMEOUT_S,
    VERSIONS,
    JavaTools,
    Program,
    ended_after,
    expect,
    program_jars,
    until,
)
from bench.peers import MissingTool
from bench.tenant_clients import QUIET, client_of, name_hosts
from bench.transaction_copies import OldCopies

EOS_TOPICS = ("data", "echo", "min", "sum", "repartition", "max", "cnt")
SMOKE_TOPICS = (
    "data", "echo", "max", "min", "min-suppressed", "min-raw", "sum", "sws-raw", "sws-suppressed", "dif", "cnt", "avg",
    "wcnt", "tagg", "fk",
)  # fmt: skip
PARTITIONS = 5
TESTS, TOOLS = "org.apache.kafka.streams.tests", "org.apache.kafka.tools"
# What Apache Kafka's system tests set beside: a killed instance leaves its group soon, and its tasks move at once.
STREAMS = {"session.timeout.ms": "10000", "acceptable.recovery.lag": str(2**63 - 1)}
DELIVERED, REPEATED = "ALL-RECORDS-DELIVERED", "PROCESSED-MORE-THAN-GENERATED"
COPIERS, COPIED_BETWEEN_KILLS = 3, 9_000
HELD, HELD_PARTITIONS = ("held-old", "held-new"), 2
HELD_PROGRAM = Path(__file__).with_name("HeldOffsets.java")


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster and what runs on it. `kills`: how many clients and brokers, in turn, die in a step. `watcher`: settings
    of the clients here that watch the programs. `tenant`: the file of Java's settings, if they are a tenant's."""

    cluster: EmbeddedCluster
    jars: Path
    folder: Path
    kills: int
    instances: int
    rng: random.Random
    watcher: dict[str, str]
    tenant: Path | None

    @property
    def client(self) -> dict[str, str | int | float | bool]:
        return {**self.watcher}

    @property
    def bootstrap(self) -> str:
        return self.watcher["bootstrap.servers"]

    def properties(self, name: str, **settings: str) -> Path:
        """A file of client settings, with a state directory of its own."""
        path = self.folder / f"{name}.properties"
        login = "" if self.tenant is None else self.tenant.read_text().rstrip("\n") + "\n"
        lines = {"bootstrap.servers": self.bootstrap, "state.dir": str(self.folder / name), **settings}
        path.write_text(login + "".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def start(self, name: str, main: str, *arguments: str) -> Program:
        return Program(self.jars, self.folder / f"{name}.out", main, *arguments, defaults=self.tenant)

    def make_topics(self, topics: dict[str, int]) -> None:
        admin = AdminClient(self.client)
        made = admin.create_topics([NewTopic(name, count, 3) for name, count in topics.items()])
        for future in made.values():
            future.result(TIMEOUT_S)

    def committed_ends(self, topic: str) -> list[int]:
        """The last stable offset of each partition; it grows when a transaction there ends."""
        consumer = Consumer({**self.client, "group.id": "watch", "isolation.level": "read_committed"})
        try:
            partitions = sorted(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
            return [consumer.get_watermark_offsets(TopicPartition(topic, n), TIMEOUT_S)[1] for n in partitions]
        finally:
            consumer.close()


def kill_client(scene: Scene, clients: list[Program], revive: Callable[[int], Program]) -> None:
    number = scene.rng.randrange(len(clients))
    clients[number].kill()
    clients[number] = revive(number)


def kill_broker(scene: Scene) -> None:
    broker = f"broker-{scene.rng.randrange(3)}"
    scene.cluster.kill(broker)
    time.sleep(1.0)
    scene.cluster.command("start", broker)


def kill_in_turn(
    scene: Scene, topic: str, clients: list[Program], revive: Callable[[int], Program], is_over: Callable[[], bool]
) -> None:
    """Kill a client, then a broker, and so on. Before each kill, and at the end, each partition of `topic` that has
    records gets new ones that are committed, unless the input `is_over`."""

    def advance(what: str) -> None:
        before = scene.committed_ends(topic)

        def has_advanced() -> bool:
            ends = scene.committed_ends(topic)
            return any(ends) and all(end > old for end, old in zip(ends, before, strict=True) if end)

        until(lambda: is_over() or has_advanced(), f"{topic} goes on {what}")

    advance("at first")
    for turn in range(scene.kills):
        if is_over():
            break
        if turn % 2 == 0:
            kill_client(scene, clients, revive)
        else:
            kill_broker(scene)
        advance(f"after kill {turn + 1}")


def _lag(scene: Scene, group: str, topic: str) -> int:
    """How many records of the topic the group has not committed."""
    admin = AdminClient(scene.client)
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    rows = asked[group].result(TIMEOUT_S).topic_partitions or []
    done = {row.partition: max(0, row.offset) for row in rows if row.topic == topic}
    return sum(end - done.get(index, 0) for index, end in enumerate(scene.committed_ends(topic)))


def _stop(programs: list[Program]) -> None:
    """Ask all to end at once, and wait for them."""
    for program in programs:
        program.terminate()
    for program in programs:
        program.wait(PATIENCE_S)


def streams_eos(scene: Scene, *, is_complex: bool) -> str:
    """StreamsEosTest: its instances, killed in turn with brokers, deliver each record once."""
    scene.make_topics(dict.fromkeys(EOS_TOPICS, PARTITIONS))
    suffix, main = "-complex" if is_complex else "", f"{TESTS}.StreamsEosTest"
    settings = {"processing.guarantee": "exactly_once_v2", **STREAMS}
    files = [scene.properties(f"eos-{n}", **settings) for n in range(scene.instances)]

    def client(number: int) -> Program:
        return scene.start(f"eos-{number}", main, str(files[number]), f"process{suffix}")

    driver = scene.start("eos-driver", main, str(files[0]), "run")
    clients = [client(number) for number in range(scene.instances)]
    with ended_after([driver], clients):
        kill_in_turn(scene, "echo", clients, client, is_over=lambda: False)
        _stop([driver])
        until(lambda: _lag(scene, "EosTest", "data") == 0, "every record is processed")
        if is_complex:  # a marker may stand behind the last record
            until(lambda: _lag(scene, "EosTest", "repartition") <= PARTITIONS, "every second record is processed")
        _stop(clients)
    said = scene.start("eos-verify", main, str(files[0]), f"verify{suffix}").wait(PATIENCE_S)
    expect(DELIVERED in said, f"{DELIVERED}: {said[-1_500:]}")
    return f"{DELIVERED}, {sum(scene.committed_ends('data'))} records"


def streams_smoke(scene: Scene, guarantee: str) -> str:
    """StreamsSmokeTest: its driver finds every result right. With at_least_once it may find repeated ones, and says so,
    for a killed instance repeats records."""
    scene.make_topics(dict.fromkeys(SMOKE_TOPICS, PARTITIONS))
    main = f"{TESTS}.StreamsSmokeTest"
    settings = {"processing.guarantee": guarantee, **STREAMS}
    files = [scene.properties(f"smoke-{n}", **settings) for n in range(scene.instances)]

    def client(number: int) -> Program:
        return scene.start(f"smoke-{number}", main, str(files[number]), "process")

    driver = scene.start("smoke-driver", main, str(files[0]), "run")
    clients = [client(number) for number in range(scene.instances)]
    with ended_after([driver], clients):
        kill_in_turn(scene, "echo", clients, client, is_over=lambda: "Echo records" in driver.said())
        said = driver.wait(2 * PATIENCE_S)
        _stop(clients)
    verdicts = [word for word in said.split() if word in ("SUCCESS", REPEATED)]
    expected = "SUCCESS" if guarantee == "exactly_once_v2" or REPEATED not in verdicts else REPEATED
    expect(expected in verdicts, f"{expected}: {said[-1_500:]}")
    return " and ".join(verdicts)


def broker_compatibility(scene: Scene) -> str:
    scene.make_topics({"brokerCompatibilitySourceTopic": 1, "brokerCompatibilitySinkTopic": 1})
    file, main = scene.properties("compatibility"), f"{TESTS}.BrokerCompatibilityTest"
    program = scene.start("compatibility", main, str(file), "exactly_once_v2")
    with ended_after([program]):
        said = program.wait(TIMEOUT_S)
    passed = "close Kafka Streams" in said and "FATAL" not in said and "exception" not in said and not program.failed
    expect(passed, f"one record comes through: {said[-1_500:]}")
    return "one record came through"


def message_copiers(scene: Scene) -> str:
    """Three copiers with random aborts, killed and started again: output is input, each record once."""
    scene.make_topics({"copied-from": COPIERS, "copied-to": COPIERS})

    def copier(number: int) -> Program:
        return scene.start(
            f"copier-{number}", f"{TOOLS}.TransactionalMessageCopier", "--broker-list", scene.bootstrap,
            "--input-topic", "copied-from", "--input-partition", str(number), "--output-topic", "copied-to",
            "--consumer-group", "copiers", "--transactional-id", f"copier-{number}", "--transaction-size", "50",
            "--enable-random-aborts", "--use-group-metadata",
        )  # fmt: skip

    def next_run(number: int) -> Program:
        return copier(number) if len(copiers) < COPIERS or copiers[number].ended else copiers[number]

    copiers: list[Program] = []
    written = 0
    with ended_after(copiers):
        for turn in range(scene.kills):
            written = _feed(scene, written)
            copiers[:] = [next_run(number) for number in range(COPIERS)]
            _await_growth(scene, "copied-to", f"copies go on in turn {turn + 1}")
            if turn % 2 == 0:
                kill_client(scene, copiers, copier)
            else:
                kill_broker(scene)
        for number, program in enumerate(copiers):
            program.wait(PATIENCE_S)
            copiers[number] = copier(number)  # the last run of each finds what is left
        for program in copiers:
            program.wait(PATIENCE_S)
            expect(not program.failed, f"the last run of a copier ends well: {program.said()[-800:]}")
    copies = committed_values(scene.client, "copied-to", COPIERS)
    found = Counter(value for values in copies for value in values)
    expected = Counter(str(number).encode() for number in range(written))
    expect(found == expected, f"output is input: {len(expected - found)} missing, {len(found - expected)} twice")
    return f"{written} records copied"


def held_offsets(scene: Scene) -> str:
    """Transactions of Java, in the new protocol, and of librdkafka, in the old one, keep a group's offsets while their
    tenant changes cells. So no transaction begins for a while; then both go on, and each transaction is whole."""
    admin = AdminClient(scene.client)
    for future in admin.create_topics([NewTopic(name, HELD_PARTITIONS, 2) for name in HELD]).values():
        future.result(TIMEOUT_S)
    folder, old_name, new_name = scene.folder / "held", *HELD
    folder.mkdir()
    hold = folder / "hold"
    hold.touch()
    names = (new_name, str(HELD_PARTITIONS), new_name, new_name, str(folder))
    new = Program(
        scene.jars, scene.folder / "held.out", str(HELD_PROGRAM), str(scene.properties("held-offsets")), *names
    )
    old = OldCopies(scene.client, old_name, HELD_PARTITIONS, old_name, old_name, holds=True)
    old.start()

    def tenant() -> dict[str, str]:
        row: dict[str, str] = json.loads(scene.cluster.command_of("tenants", "describe", TENANT, "--json"))
        return row

    def done() -> tuple[int, int]:
        expect(old.failure is None and not new.failed, f"no client fails: {old.failure}, {new.said()[-1_500:]}")
        return old.done, new.said().count("done")

    with ended_after([new]):
        try:
            until(lambda: done() == (0, 0) and old.is_holding and "holding" in new.said(), "both keep offsets pending")
            cells = json.loads(scene.cluster.command_of("cells", "list", "--json"))
            target = next(row["cell"] for row in cells if row["cell"] != tenant()["cell"])
            scene.cluster.command_of("tenants", "move", TENANT, "--cell", target, "--no-wait")
            until(lambda: tenant()["hand_over"] == "holding", "no transaction of the tenant begins")
            old.go_on()
            hold.unlink()
            until(lambda: tenant()["state"] == "active", "the tenant has moved")
            expect(tenant()["cell"] == target, f"it lives in cell {target}")
            before = done()
            until(lambda: all(now >= had + 3 for now, had in zip(done(), before, strict=True)), "both go on")
        finally:
            old.stop()
            (folder / "stop").touch()
        new.wait(PATIENCE_S)
        old.join(PATIENCE_S)
    for name, count in zip(HELD, done(), strict=True):
        # In the new protocol a commit is answered before its markers are written: the last one shows a little later.
        until(partial(_are_whole, scene, name, count), f"each transaction of {name} is whole, and once")
        asked = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0)])
        offsets = admin.list_consumer_group_offsets([asked], require_stable=True)[name].result(TIMEOUT_S)
        expect([row.offset for row in offsets.topic_partitions or []] == [count], f"the offset of {name} is as well")
    return "{} and {} transactions of the old and of the new protocol".format(*done())


def _are_whole(scene: Scene, topic: str, count: int) -> bool:
    """Whether readers of committed records see each number in each partition, in order and once."""
    expected = [str(number).encode() for number in range(count)]
    return committed_values(scene.client, topic, HELD_PARTITIONS) == [expected] * HELD_PARTITIONS


def _await_growth(scene: Scene, topic: str, meaning: str) -> None:
    before = sum(scene.committed_ends(topic))
    until(lambda: sum(scene.committed_ends(topic)) > before, meaning)


def _feed(scene: Scene, begin: int) -> int:
    """Write more numbers, from `begin` on; the one behind the last."""
    end = begin + COPIED_BETWEEN_KILLS
    producer = Producer(scene.client)
    for number in range(begin, end):
        producer.produce("copied-from", str(number).encode(), partition=number % COPIERS)
        producer.poll(0)
    expect(producer.flush(TIMEOUT_S) == 0, "the input is written")
    return end


STEPS: dict[str, Callable[[Scene], str]] = {
    "smoke": lambda scene: streams_smoke(scene, "exactly_once_v2"),
    "smoke-at-least-once": lambda scene: streams_smoke(scene, "at_least_once"),
    "eos-complex": lambda scene: streams_eos(scene, is_complex=True),
    "eos": lambda scene: streams_eos(scene, is_complex=False),
    "copiers": message_copiers,
    "broker-compatibility": broker_compatibility,
}
BRIEF = ("smoke", "eos-complex", "copiers-as-tenant", "broker-compatibility", "held-offsets-as-tenant")
"""Each program once. What the other steps do, these do as well."""
TENANT, AS_TENANT = "streams", "-as-tenant"
TENANT_STEPS = ("eos-complex", "copiers")
MOVES: dict[str, Callable[[Scene], str]] = {"held-offsets": held_offsets}
"""Only as a tenant, which changes cells."""
AT_ONCE = 2  # the programs wait for half of their time


def run_step(name: str, version: str, options: argparse.Namespace, hosts: Path | None) -> None:
    """`hosts`: our own hosts file, if we have one."""
    jars, as_tenant = program_jars(version), name.endswith(AS_TENANT)
    settings = {"group.initial.rebalance.delay.ms": "500", "log.dir.free.bytes.min": "0"}
    step = name.removesuffix(AS_TENANT)
    brokers, cells = (4, 2) if step in MOVES else (3, None)
    tenants = (TENANT,) if as_tenant else ()
    made = EmbeddedCluster(brokers, settings, proxies=int(as_tenant), tenants=tenants, cells=cells)
    with tempfile.TemporaryDirectory(prefix="tidelog-eos-") as temporary, made as cluster:
        folder = options.keep / f"{version}-{name}" if options.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kills, instances = (8, 3) if options.long else (2, 2)
        watcher, tenant = {"bootstrap.servers": cluster.bootstrap, **QUIET}, None
        if as_tenant:
            watcher, tenant = client_of(cluster, TENANT), cluster.tenant_file(TENANT, "java.properties")
            name_hosts(hosts, [watcher], brokers)
        began = time.monotonic()
        scene = Scene(cluster, jars, folder, kills, instances, random.Random(options.seed), watcher, tenant)
        said = {**STEPS, **MOVES}[step](scene)
        # A move of ids leaves records of our own in one topic; without transactions that one has none at all.
        decodable = ["__consumer_offsets"] if step == "smoke-at-least-once" else list(DECODERS)
        topics = [] if step in MOVES else decodable
        decoded = internal_topics(JavaTools(jars, cluster.bootstrap), cluster.data / "broker-1", topics)
        seconds = time.monotonic() - began
        print(f"ok: {name} in {seconds:.0f} s, Apache Kafka {version}: {said}; {decoded}", flush=True)


def run_all(runs: list[tuple[str, str]], options: argparse.Namespace, hosts: Path | None) -> None:
    """Some steps at a time, each with a cluster of its own. The first failure ends it when what runs has ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(run_step, name, version, options, hosts) for version, name in runs]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def main() -> int:
    names = [*STEPS, *(f"{name}{AS_TENANT}" for name in (*TENANT_STEPS, *MOVES))]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="append", choices=VERSIONS, help="of the programs")
    parser.add_argument("--only", action="append", choices=names, help="a step")
    parser.add_argument("--long", action="store_true", help=f"every step, with {', '.join(VERSIONS)}, and more kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the programs' output")
    options = parser.parse_args()
    reason = None if private_hosts.names_resolve() else private_hosts.problem()
    hosts = None if reason is not None else private_hosts.enter("bench.compat_exactly_once", sys.argv[1:])
    chosen = list(dict.fromkeys(options.only or (names if options.long else BRIEF)))
    if reason is not None:
        print(f"nothing is run as a tenant: {reason}")
        steps = dict.fromkeys(name.removesuffix(AS_TENANT) for name in chosen)
        chosen = [name for name in steps if name in STEPS]
    versions = list(options.kafka or (VERSIONS if options.long else VERSIONS[:1]))
    try:
        for version in versions:
            program_jars(version)
    except MissingTool as missing:
        print(f"not run: {missing}")
        return 0 if os.environ.get("CI") else 2
    run_all([(version, name) for version in versions for name in chosen], options, hosts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
