"""One flight among all that left New York in 2013, as a person would look for it."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer

from bench.console_program import ConsoleProgram
from bench.demo.flights import data_folder, read_flights
from bench.embedded import EmbeddedCluster

FLIGHTS = 336_776
TOPIC = "all-flights"
FOUND_MS = 120_000


def fill(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", TOPIC, "--partitions", "6")
    settings = {"linger.ms": 5, "compression.type": "lz4", "queue.buffering.max.messages": FLIGHTS}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number, flight in enumerate(read_flights(data_folder()), 1):
        producer.produce(TOPIC, json.dumps(flight), flight["tailnum"])
        if number % 1_000 == 0:
            producer.poll(0)
    assert number == FLIGHTS
    assert producer.flush(120) == 0


def test_one_flight_among_all_of_a_year(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    fill(cluster)
    page.get_by_role("link", name="Topics", exact=True).click()
    page.get_by_role("link", name=TOPIC).click()
    page.get_by_role("link", name="Records").click()
    page.get_by_label("Where the value has").fill('$.dep_delay == "1301"')
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("tr.end >> text=336", timeout=FOUND_MS)
    assert "336 776 records looked at" in page.locator("tr.end").inner_text().replace("\u202f", " ")
    assert page.locator("tbody details").count() == 1, "the longest delay of the year"
    shown = json.loads(page.locator("tbody pre").text_content())
    assert (shown["carrier"], shown["flight"], shown["month"], shown["day"]) == ("HA", "51", "1", "9")
