"""Many partitions on three brokers: creation, memory, idling, killed brokers; `python -m bench --partitions 100000`.

Three real brokers and three real controllers, RF 3, so each broker hosts a replica of every partition. Nothing is
simulated. The metadata is watched as a broker would follow it (`bench.metadata_watch`), and each broker is asked the
smallest request twenty times a second: how long an answer takes shows for how long its loop was held.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import struct
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.embedded import EmbeddedCluster
from bench.metadata_watch import MetadataWatch, Step
from bench.peers import cpu_seconds, resident_mb
from tidelog.cluster.control import ask

PARTITIONS_EACH = 1_000
BASE = 10_000  # partitions before the rest is created: memory and idle CPU must not depend on their number
REPLICAS = 3
IDLE_S = 30.0
SETTLE_S = 10.0
IDLE_SETTLE_S = 75.0  # what follows a creation once has passed: checkpoints and exports are due each minute
DEADLINE_S = 900.0
PING_S = 0.05
CREATED_S, FENCED_S, MOVED_S, IDLE_SHARE = 600.0, 1.0, 5.0, 5.0  # goals; the last one in per cent of a core
CLIENTS = "PLAINTEXT"
HELD = "tidelog_loop_held_seconds_count"  # callbacks that held a node's loop
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@dataclass(slots=True)
class Figure:
    """`bound` is None where the figure is stated and nothing is demanded of it."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def met(self) -> bool:
        return self.bound is None or self.value <= self.bound


class Pings:
    """The smallest request, sent to one broker again and again; `longest_s` is the longest wait for an answer."""

    def __init__(self, port: int) -> None:
        self.longest_s = 0.0
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=10) as link:
                    while not self._ended.wait(PING_S):
                        began = time.monotonic()
                        link.sendall(API_VERSIONS)
                        if not link.recv(65_536):
                            break
                        self.longest_s = max(self.longest_s, time.monotonic() - began)
            except OSError:
                self._ended.wait(PING_S)

    def stop(self) -> float:
        self._ended.set()
        self._thread.join(60)
        return self.longest_s


def scrape(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a node, summed over their labels; nothing of a node that does not answer."""
    found: dict[str, float] = {}
    try:
        with urllib.request.urlopen(f"http://{row['metrics']}/metrics", timeout=30) as page:
            for line in page.read().decode().splitlines():
                if not line.startswith("#"):
                    name, value = line.rsplit(" ", 1)
                    plain = name.split("{")[0]
                    found[plain] = found.get(plain, 0.0) + float(value)
    except OSError:
        return {}
    return found


class Scale:
    """One cluster and what was measured of it."""

    def __init__(self, cluster: EmbeddedCluster, watch: MetadataWatch, console: Console) -> None:
        self.found: list[Figure] = []
        self._cluster = cluster
        self._watch = watch
        self._console = console
        self._topics = 0
        self._rest_mb: dict[str, float] = {}
        self.total = 0

    def note(self, name: str, value: float, unit: str, bound: float | None = None) -> None:
        self.found.append(Figure(name, round(value, 3), unit, bound))
        self._console.print(
            f"  {time.strftime('%X')} {name}: {value:.3f} {unit}" + ("" if bound is None else f" (at most {bound:g})")
        )

    def rows(self, role: str) -> list[dict[str, Any]]:
        nodes = ask(self._cluster.data, {"do": "ps"}, DEADLINE_S)["nodes"]
        return [row for row in nodes if row["role"] == role and row["pid"]]

    def _wait_roles(self) -> float:
        """When the brokers that live host and lead everything: time of the monotonic clock."""
        rows = self.rows("broker")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            pages = [scrape(row) for row in rows]
            led = sum(page.get("tidelog_leader_partitions", 0) for page in pages)
            step = self._watch.last
            lives = {row["id"] for row in rows}
            if led >= step.total and lives.issuperset(step.led):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the brokers lead {led} of {self._watch.last.total} partitions")
            time.sleep(0.2)

    # phases ------------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        time.sleep(SETTLE_S)
        for role in ("broker", "controller"):
            most = max(resident_mb([row["pid"]]) for row in self.rows(role))
            self._rest_mb[role] = most
            self.note(f"memory of a {role} without partitions, the most", most, "MB")

    def create(self, total: int, bound_s: float | None = None) -> None:
        """Topics until there are `total` partitions of ours, and the brokers lead them."""
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "topic.metadata.refresh.interval.ms": -1})
        began = time.monotonic()
        more = total - self.total
        while self.total < total:
            count = min(PARTITIONS_EACH, total - self.total)
            name = f"many-{self._topics}"
            self._topics += 1
            admin.create_topics([NewTopic(name, count, REPLICAS)], request_timeout=60)[name].result(120)
            self.total += count
        self._watch.wait(lambda step: step.total >= total, DEADLINE_S)
        took = self._wait_roles() - began
        self.note(f"{more} partitions created and led, {total} in all", took, "s", bound_s)

    def idle(self) -> None:
        time.sleep(IDLE_SETTLE_S)
        for role in ("broker", "controller"):
            pids = [row["pid"] for row in self.rows(role)]
            before = [cpu_seconds([pid]) for pid in pids]
            time.sleep(IDLE_S)
            used = max(cpu_seconds([pid]) - was for pid, was in zip(pids, before, strict=True))
            where = f"of a {role} with {self.total} partitions, the most"
            self.note(f"idle CPU {where}", 100 * used / IDLE_S, "% of a core", IDLE_SHARE)
            memory = max(resident_mb([pid]) for pid in pids)
            self.note(f"memory {where}", memory, "MB")
            self.note(
                f"memory per partition of a {role} with {self.total}",
                1024 * (memory - self._rest_mb[role]) / self.total,
                "kB",
            )

    def kill(self, name: str, what: str, *, controllers: bool = False) -> None:
        """SIGKILL to a broker, and with `controllers` to one controller after another, the active one first."""
        rows = {row["node"]: row for row in self.rows("broker")}
        broker = int(rows[name]["id"])
        before: Step = self._watch.last
        self._watch.forget()
        others = [row for node, row in rows.items() if node != name]
        held_before = sum(scrape(row).get(HELD, 0) for row in others)
        pings = [Pings(int(row["listeners"][CLIENTS].rsplit(":", 1)[1])) for row in others]
        self._ask("kill", name)
        killed = time.monotonic()
        took_over: list[float] = []
        waiting = threading.Thread(target=lambda: took_over.append(self._wait_roles()), daemon=True)
        waiting.start()
        wanted = self._kill_controllers() if controllers else 0
        fenced = self._watch.wait(lambda step: broker in step.fenced, DEADLINE_S)
        moved = self._watch.wait(
            lambda step: broker in step.fenced and not step.led.get(broker) and not step.led.get(-1), DEADLINE_S
        )
        waiting.join(DEADLINE_S)
        time.sleep(SETTLE_S / 2)  # an election that comes late counts, too
        longest = max([ping.stop() for ping in pings])
        self.note(f"{what}: fenced after", fenced.at - killed, "s", FENCED_S)
        self.note(f"{what}: {before.led.get(broker, 0)} leaderships moved after", moved.at - killed, "s", MOVED_S)
        self.note(f"{what}: served by the others after", took_over[0] - killed, "s")
        self.note(f"{what}: further elections", self._watch.last.epoch - before.epoch - wanted, "elections", 0)
        self.note(
            f"{what}: callbacks that held a broker", sum(scrape(row).get(HELD, 0) for row in others) - held_before, ""
        )
        self.note(f"{what}: longest wait for an answer", longest, "s")

    def _kill_controllers(self) -> int:
        """Each is back before the next one goes; how many were active, each of which is worth one election."""
        elections = 0
        left = {row["id"]: row["node"] for row in self.rows("controller")}
        while left:
            active = self._watch.last.controller
            chosen = active if active in left else next(iter(left))
            elections += chosen == active
            epoch = self._watch.last.epoch
            self._ask("kill", left[chosen])
            if chosen == active:
                self._watch.wait(lambda step, epoch=epoch: step.epoch > epoch, DEADLINE_S)  # type: ignore[misc]
            self._ask("start", left.pop(chosen))
        return elections

    def _ask(self, action: str, node: str) -> None:
        """Returns when the node is gone, or ready; the command of that name takes seconds on a busy machine."""
        answer = ask(self._cluster.data, {"do": action, "node": node}, DEADLINE_S)
        if not answer["ok"]:
            raise RuntimeError(f"{action} {node}: {answer['error']}")
        deadline = time.monotonic() + DEADLINE_S
        while action == "start" and not any(  # a start is answered after seconds whether or not the node is ready
            row["node"] == node and row["state"] == "running"
            for row in [*self.rows("controller"), *self.rows("broker")]
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node} does not become ready")
            time.sleep(0.05)

    def revive(self, name: str) -> None:
        began = time.monotonic()
        self._watch.forget()
        self._cluster.command("start", name)
        step = self._watch.wait(lambda step: not step.fenced and step.whole == step.total, DEADLINE_S)
        self.note(f"{name} back in every ISR after", step.at - began, "s")


def measure_scale(total: int, work: Path, results: Path, console: Console, *, counts_only: bool = False) -> int:
    """0 when every goal is met; with `counts_only` no goal is a time, and nothing waits to be measured at rest."""
    data = work / f"partition-scale-{os.getpid()}"
    console.print(f"{total} partitions, RF 3: three brokers and three controllers, all real, on one machine")
    with EmbeddedCluster(data=data, brokers=3, controllers=3) as cluster:
        watch = MetadataWatch(data)
        try:
            scale = Scale(cluster, watch, console)
            if counts_only:
                scale.create(total)
            else:
                _at_rest(scale, total)
            scale.kill("broker-0", "a broker killed")
            scale.revive("broker-0")
            scale.kill("broker-1", "a broker and the controllers killed", controllers=True)
            scale.revive("broker-1")
        finally:
            watch.close()
    shutil.rmtree(data, ignore_errors=True)
    found = [replace(figure, bound=None) if counts_only and figure.unit == "s" else figure for figure in scale.found]
    show(found, total, console)
    if not counts_only:
        save(found, total, results)
    return 0 if all(figure.met for figure in found) else 1


def _at_rest(scale: Scale, total: int) -> None:
    scale.at_rest()
    base = min(BASE, total)
    scale.create(base)
    scale.idle()
    if total > base:
        scale.create(total, CREATED_S)
        scale.idle()


def show(found: list[Figure], total: int, console: Console) -> None:
    table = Table(title=f"{total} partitions, three replicas, three brokers and three controllers, all real")
    for column in ("figure", "value", "goal", ""):
        table.add_column(column)
    for figure in found:
        mark = "" if figure.bound is None else "[green]✓[/]" if figure.met else "[red]✗[/]"
        goal = "" if figure.bound is None else f"<= {figure.bound:g}"
        table.add_row(figure.name, f"{figure.value:g} {figure.unit}", goal, mark)
    console.print(table)


def save(found: list[Figure], total: int, results: Path) -> None:
    results.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    rows = [asdict(figure) | {"met": figure.met} for figure in found]
    body = {"partitions": total, "machine": machine, "load": os.getloadavg(), "rows": rows}
    (results / f"partitions-{total}.json").write_text(json.dumps(body, indent=1) + "\n")
