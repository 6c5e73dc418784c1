"""`python -m bench.console_pages`: what the console's pages cost on a cluster of 10,000 partitions and 1,000 groups.

Each page and each part that a page asks for by itself is loaded several times, some seconds apart, as a person would:
the time, and the processor time of the console and of all brokers. A broker's own work at rest is taken off. With a
Chromium also how long until a page's load event, and what five pages cost that lie open for four minutes.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import re
import statistics
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.console_program import ConsoleProgram, browser, enter, missing
from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds, resident_mb

BROKERS = 3
LARGE, LARGE_PARTITIONS = 4, 1_000
SMALL, SMALL_PARTITIONS = 1_000, 6
GROUPS, GROUP_PARTITIONS = 1_000, 6
CREATED_AT_ONCE = 100
REST_S, IDLE_S = 60.0, 240.0  # a page that is only open asks for the costliest look every two minutes
ROUNDS, APART_S = 6, 12.0
LIMIT_MS = 300
SEARCH = "/topics/large-0/records"
LISTED = "&".join(f"name=group-{number:04}" for number in range(50))
PAGES = (
    "/", "/overview/findings", "/topics", "/topics?q=small-9", "/topics/large-0", "/topics/small-7",
    "/topics/large-0/records", "/groups", f"/groups/lag?{LISTED}", "/groups/one?name=group-0007", "/transactions",
    "/transactions/open", "/tenants", "/cells", "/balance", "/balance/history", "/tier", "/audit",
    "/settings?kind=topic&of=large-0", "/settings?kind=broker&of=0",
)  # fmt: skip
OPEN = ("/", "/topics", "/topics/large-0", "/groups", "/balance")


@dataclass(slots=True)
class Cost:
    """The loads of a page, in milliseconds: until the answer is there, of the console's and the brokers' processor,
    and until a browser has loaded it."""

    took: list[float] = field(default_factory=list)
    console: list[float] = field(default_factory=list)
    brokers: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)


class Visitor:
    """A session of the console without a browser."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        door = _field(self.get("/login"), "door")
        self.post("/login", way="anonymous", door=door)
        self._token = _field(self.get("/new-topic"), "csrf")

    def get(self, path: str) -> str:
        with self._opener.open(self._address + path, timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **fields: str) -> str:
        data = urllib.parse.urlencode(fields).encode()
        with self._opener.open(self._address + path, data, timeout=60) as answer:
            return str(answer.read().decode())

    def search(self) -> str:
        """The newest records of a topic, which its page asks for."""
        return self.post(SEARCH, csrf=self._token, rows="50")


def _field(page: str, name: str) -> str:
    found = re.search(f'name="{name}" value="([^"]*)"', page)
    if found is None:
        raise RuntimeError(f"the page has no {name}")
    return found.group(1)


class Measurement:
    """On a cluster that is full, and a console of it."""

    def __init__(self, cluster: EmbeddedCluster, program: ConsoleProgram) -> None:
        self._cluster = cluster
        self._program = program
        self._brokers = [row["pid"] for row in cluster.nodes() if row["role"] == "broker"]
        self.costs: dict[str, Cost] = {}
        self.at_rest = 0.0

    def rest(self) -> float:
        """What brokers do without any page, in seconds of processor time a second."""
        with self._counted() as spent:
            time.sleep(REST_S)
        self.at_rest = spent[1] / REST_S
        return self.at_rest

    def load(self, rounds: int) -> None:
        visitor = Visitor(self._program.address)
        for _ in range(rounds):
            began = time.monotonic()
            for path in PAGES:
                self._load_one(path, lambda path=path: visitor.get(path))
            self._load_one(f"{SEARCH} (the newest)", visitor.search)
            time.sleep(max(0.0, began + APART_S - time.monotonic()))

    def _load_one(self, name: str, load: Any) -> None:
        cost = self.costs.setdefault(name, Cost())
        began = time.perf_counter()
        with self._counted() as spent:
            load()
            cost.took.append(1e3 * (time.perf_counter() - began))
        cost.console.append(1e3 * spent[0])
        cost.brokers.append(1e3 * (spent[1] - self.at_rest * (time.perf_counter() - began)))

    def load_in_browser(self, chromium: Any, rounds: int) -> None:
        page = chromium.new_page()
        enter(page, self._program.address)
        for _ in range(rounds):
            for path in PAGES:
                page.goto(self._program.address + path)
                timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
                page.wait_for_function(f"{timing} > 0")
                self.costs[path].loaded.append(page.evaluate(timing))
        page.close()

    def stay_open(self, chromium: Any) -> tuple[float, float]:
        """Shares of a core that the console and all brokers use for pages that only lie open."""
        before = self.rest()
        context = chromium.new_context()
        for at, path in enumerate(OPEN):
            page = context.new_page()
            if not at:
                enter(page, self._program.address)
            page.goto(self._program.address + path)
        time.sleep(5.0)
        with self._counted() as spent:
            time.sleep(IDLE_S)
        context.close()
        self.at_rest = (before + self.rest()) / 2  # a cluster that has just been filled does less and less
        return spent[0] / IDLE_S, spent[1] / IDLE_S - self.at_rest

    @contextmanager
    def _counted(self) -> Iterator[list[float]]:
        """Seconds of processor time of the console and of all brokers, once the block has ended."""
        spent = [0.0, 0.0]
        before = cpu_seconds([self._program.pid]), cpu_seconds(self._brokers)
        yield spent
        spent[:] = cpu_seconds([self._program.pid]) - before[0], cpu_seconds(self._brokers) - before[1]


def fill(bootstrap: str, share: float) -> None:
    """The topics, a record to each partition of the first one, and groups that have read a part of theirs."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    large, small, groups = (max(1, round(share * number)) for number in (LARGE_PARTITIONS, SMALL, GROUPS))
    wanted = [NewTopic(f"large-{number}", large, BROKERS) for number in range(LARGE)]
    wanted += [NewTopic(f"small-{number}", SMALL_PARTITIONS, BROKERS) for number in range(small)]
    for start in range(0, len(wanted), CREATED_AT_ONCE):
        for made in admin.create_topics(wanted[start : start + CREATED_AT_ONCE]).values():
            made.result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for partition in range(large):
        producer.produce("large-0", b'{"a": 1}', partition=partition)
    for topic in range(small):
        for partition in range(SMALL_PARTITIONS):
            producer.produce(f"small-{topic}", b'{"a": 1}', partition=partition)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all records were written")
    for start in range(0, groups, CREATED_AT_ONCE):
        asked = [
            admin.alter_consumer_group_offsets([_committed(number, small)])
            for number in range(start, min(start + CREATED_AT_ONCE, groups))
        ]
        for one in asked:
            for done in one.values():
                done.result(60)


def _committed(number: int, topics: int) -> ConsumerGroupTopicPartitions:
    topic = f"small-{number % topics}"
    rows = [TopicPartition(topic, partition, number % 2) for partition in range(GROUP_PARTITIONS)]
    return ConsumerGroupTopicPartitions(f"group-{number:04}", rows)


def show(costs: dict[str, Cost]) -> None:
    table = Table("page", *("ms, p50", "most", "console CPU", "brokers' CPU", "in a browser, p50", "most "))
    for path, cost in costs.items():
        table.add_row(
            path[:60], _middle(cost.took), _most(cost.took), _mean(cost.console), _mean(cost.brokers),
            _middle(cost.loaded), _most(cost.loaded),
        )  # fmt: skip
    Console(width=140).print(table)


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f}" if values else ""


def _most(values: Sequence[float]) -> str:
    return f"{max(values):.0f}" if values else ""


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.0f}" if values else ""


def main() -> int:
    arguments = argparse.ArgumentParser(prog="bench.console_pages", description=__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--share", type=float, default=1.0, help="of the partitions and groups, for a quick look")
    given = arguments.parse_args()
    with EmbeddedCluster(BROKERS, {"log.dir.free.bytes.min": "0"}) as cluster:
        began = time.monotonic()
        fill(cluster.bootstrap, given.share)
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
        with ConsoleProgram(cluster) as program:
            measured = Measurement(cluster, program)
            measured.rest()
            measured.load(given.rounds)
            if reason := missing():
                print(f"without a browser: {reason}", file=sys.stderr)
            else:
                with browser() as chromium:
                    measured.load_in_browser(chromium, given.rounds)
                    open_console, open_brokers = measured.stay_open(chromium)
            show(measured.costs)
            print(f"brokers at rest, all together: {measured.at_rest:.1%} of a core")
            if not reason:
                print(f"five open pages: console {open_console:.1%} of a core, all brokers {open_brokers:.1%}")
            print(f"memory of the console: {resident_mb([program.pid]):.0f} MB")
    slow = [
        path[:60] for path, cost in measured.costs.items() if statistics.median(cost.loaded or cost.took) >= LIMIT_MS
    ]
    print(f"slower than {LIMIT_MS} ms: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
