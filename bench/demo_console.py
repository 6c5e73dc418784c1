"""The console on a cluster that replays the flights of 2013, until Ctrl-C; then a picture of each page, into docs.

Four brokers in two cells, a tier, two tenants. All flights are produced, a group reads a part of them, one more topic
is deleted and can be restored; then the flights go on, slowly, so that the pages move.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.console_program import WAIT_MS, ConsoleProgram, browser, enter, missing
from bench.demo.flights import data_folder, read_flights
from bench.embedded import EmbeddedCluster

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "console"
TOPIC, GROUP, DELETED = "flights", "delays", "flights-of-2012"
READ = 100_000
A_SECOND = 500
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
READERS = ("User:delays", "User:reports", "User:anomalies")
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": f"/topics/{TOPIC}",
    "records": f'/topics/{TOPIC}/records?from=begin&rows=20&where=$.carrier == "UA" %26%26 $.dest == "HNL"',
    "groups": "/groups",
    "group": f"/groups/one?name={GROUP}",
    "transactions": "/transactions",
    "tenants": "/tenants",
    "tenant": "/tenants/one?name=demo",
    "cells": "/cells",
    "balance": "/balance",
    "balance-history": "/balance/history",
    "tier": "/tier",
    "acls": "/acls",
    "audit": f"/audit?topic={TOPIC}",
    "settings": "/settings?kind=broker&of=0",
    "setting": f"/settings/one?kind=topic&of={TOPIC}&setting=retention.ms",
}


def main() -> int:
    arguments = argparse.ArgumentParser(prog="bench.demo_console", description=__doc__)
    arguments.add_argument("--pictures-only", action="store_true", help="do not wait for Ctrl-C")
    given = arguments.parse_args()
    with EmbeddedCluster(4, RIGHTS, cells=2, proxies=1, tenants=["demo", "other"]) as cluster:
        print(f"a cluster serves at {cluster.bootstrap}; the flights go in", flush=True)
        fill(cluster)
        with ConsoleProgram(cluster) as console, replaying(cluster.bootstrap):
            print(f"the console is at {console.address}", flush=True)
            if not given.pictures_only:
                print("Ctrl-C ends it, with pictures of its pages in docs/console", flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait()
            if reason := missing():
                print(f"no pictures: {reason}", file=sys.stderr)
                return 1
            pictures(console.address)
    print(f"pictures of {len(PAGES)} pages are in {PICTURES}")
    return 0


def fill(cluster: EmbeddedCluster) -> None:
    tiered = ["--config", "remote.storage.enable=true", "--config", "segment.bytes=4194304"]
    for name in (TOPIC, DELETED):
        cluster.command_of("topics", "create", name, "--partitions", "6", *tiered)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    for number, flight in enumerate(read_flights(data_folder())):
        put(producer, TOPIC, flight)
        if number < READ:
            put(producer, DELETED, flight)
    producer.flush(60)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"client.id": "delays-1"})
    consumer.subscribe([TOPIC])
    got = 0
    while got < READ:
        got += len(consumer.consume(10_000, 10))
    consumer.commit(asynchronous=False)
    consumer.close()
    writer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "delays-writer"})
    writer.init_transactions(30)
    writer.begin_transaction()
    put(writer, DELETED, {"carrier": "UA"})
    writer.commit_transaction(30)
    cluster.command_of("topics", "delete", DELETED)
    for reader in READERS:
        right = ["--resource", "topic", "--name", TOPIC, "--operation", "read"]
        cluster.command_of("acls", "create", "--principal", reader, *right)


def put(producer: Any, topic: str, flight: dict[str, Any]) -> None:
    while True:
        try:
            producer.produce(topic, json.dumps(flight, separators=(",", ":")).encode(), flight.get("tailnum", ""))
        except BufferError:
            producer.poll(0.05)
        else:
            return


@contextlib.contextmanager
def replaying(bootstrap: str) -> Any:
    """A few hundred flights a second, over and over."""
    ends = threading.Event()

    def run() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
        for number, flight in enumerate(itertools.cycle(read_flights(data_folder()))):
            put(producer, TOPIC, flight)
            if number % A_SECOND == 0:
                producer.poll(0)
                if ends.wait(1.0):
                    break
        producer.flush(10)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(30)


def pictures(address: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    with browser() as chromium:
        context = chromium.new_context(viewport={"width": 1200, "height": 820}, reduced_motion="reduce")
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        enter(page, address)
        for name, path in PAGES.items():
            page.goto(address + path)
            page.wait_for_load_state("networkidle")
            time.sleep(0.5)  # charts are drawn
            page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
