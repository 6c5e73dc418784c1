"""What `tidelog init` writes is what systemd accepts, and runs a cluster in which clients must log in."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import free_ports
from common.settings import read_properties
from tests.packages.commands import tidelog

EXPOSURE_MAX = 20  # tenths, of 100; systemd calls less than 10 "safe" and less than 50 "OK"
READY_S = 60.0
UNDER_UNIT = """
import ctypes, os, sys
if sys.argv[1] == "True":  # PR_SET_MDWE; an older kernel knows nothing of it, which is fine
    ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execv(sys.argv[2], sys.argv[2:])
"""
PROGRAM = "/opt/tidelog/bin/tidelog"
MACHINE = "localhost"


@pytest.fixture(scope="module")
def machine(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `tidelog init` for a machine with tenants, with paths that are free here."""
    root = tmp_path_factory.mktemp("machines")
    port = free_ports(1)
    words = ["--machine", MACHINE, "--domain", "kafka.localhost", "--port", str(port), "--proxy-port", str(port + 50)]
    tidelog(str(installed / "tidelog"), "init", str(root), *words, at=root)
    for file in [*root.rglob("*.service"), *root.rglob("*.properties")]:
        text = file.read_text().replace(PROGRAM, str(installed / "tidelog"))
        text = text.replace("/etc/tidelog", str(root / MACHINE / "etc/tidelog"))
        file.write_text(text.replace("/var/lib/tidelog/", f"{root}/data-"))
    return root


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_finds_no_fault(machine: Path) -> None:
    units = sorted((machine / MACHINE / "etc/systemd/system").iterdir())
    assert len(units) == 4
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_rates_no_unit_as_more_exposed_than_2(machine: Path) -> None:
    for unit in (machine / MACHINE / "etc/systemd/system").glob("*.service"):
        command: list[str | Path] = [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--no-pager",
            f"--threshold={EXPOSURE_MAX}",
            unit,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "nrecognized option" in done.stderr:
            pytest.skip("this systemd-analyze does not look at files")
        assert done.returncode == 0, done.stdout[-300:]


@contextlib.contextmanager
def running(program: Path, role: str, file: Path) -> Iterator[None]:
    """A node as its unit runs it, brokers and proxies with memory that is either written or executed."""

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDELOG"))}
    said = file.with_suffix(".log")
    with said.open("wb") as out:
        words: list[str | Path] = ["-c", UNDER_UNIT, str(role != "controller"), program, role, "--config", file]
        process = subprocess.Popen([program.with_name("python"), *words], stdout=out, stderr=out, env=kept)
    try:
        wait_until_ready(file, process, said)
        yield
    finally:
        process.terminate()
        process.wait(READY_S)


def wait_until_ready(file: Path, process: subprocess.Popen[bytes], said: Path) -> None:
    address = f"http://127.0.0.1{read_properties(file.read_text())['tidelog.metrics.listener']}/readyz"
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.processes
def test_a_cluster_runs_from_these_files(machine: Path, installed: Path, tmp_path: Path) -> None:
    own, program = machine / MACHINE / "etc/tidelog", installed / "tidelog"
    broker = read_properties((own / "broker-0.properties").read_text())
    listeners = dict(address.split("://") for address in broker["advertised.listeners"].split(","))
    login = ["--bootstrap", listeners["OPERATORS"], "--command-config", str(machine / "operator.properties")]
    with (
        running(program, "controller", own / "controller.properties"),
        running(program, "broker", own / "broker-0.properties"),
        running(program, "proxy", own / "proxy.properties"),
    ):
        password = tmp_path / "password"
        password.write_text("not to be guessed\n")
        tidelog(str(program), "topics", "create", "t", "--partitions", "1", *login, at=tmp_path)
        tidelog(str(program), "produce", "t", *login, at=tmp_path, text="one\ntwo\n")
        assert tidelog(str(program), "consume", "t", "--exit", *login, at=tmp_path) == "one\ntwo\n"
        tidelog(str(program), "users", "set", "ada", "--password-file", str(password), *login, at=tmp_path)
        right = ["--principal", "User:ada", "--operation", "read", "--resource", "topic", "--name", "t"]
        tidelog(str(program), "acls", "create", *right, *login, at=tmp_path)
        clients = tmp_path / "ada.properties"
        clients.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ada\n"
            f"sasl.password=not to be guessed\nssl.ca.location={machine}/operator/clients-ca.pem\n"
        )
        words = ["--bootstrap", listeners["CLIENTS"], "--command-config", str(clients)]
        assert tidelog(str(program), "consume", "t", "--exit", *words, at=tmp_path) == "one\ntwo\n"
