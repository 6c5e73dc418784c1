"""What the processes of nodes have imported: memory that every node of every cluster pays for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cluster.layout import TLS_DIRECTORY, make_certificates

FOREIGN = {
    "broker": ("cryptography", "pysyncobj", "kraft.controller.driver", "aiobotocore", "botocore", "spark_offload"),
    "controller": ("cryptography", "aiobotocore", "botocore", "broker.node", "storage", "spark_offload"),
}
UNUSED_BY_ALL = ("email", "http.client", "urllib.request")
SHOW = "import sys; from tidelog.nodes.node_imports import import_node; import_node({!r}); print(*sorted(sys.modules))"


def imported(role: str) -> list[str]:
    command = [sys.executable, "-c", SHOW.format(role)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_node_imports_nothing_that_it_never_uses(role: str) -> None:
    found = imported(role)
    assert len(found) > 200
    assert [name for name in (*FOREIGN[role], *UNUSED_BY_ALL) if name in found] == []


def test_a_package_that_was_hidden_is_there_again() -> None:
    code = SHOW.format("controller") + "; import cryptography.fernet; print(cryptography.fernet.Fernet.generate_key())"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


READ = """
import sys
from tidelog.nodes.node_imports import import_node
import_node("broker", sys.argv[1:])
from wire.tls import TlsConfig, TlsContexts
from common.machine import MachineClock
known = set(sys.modules)
config = TlsConfig(keystore_location=sys.argv[2], truststore_location=sys.argv[3])
assert TlsContexts(config, MachineClock()).expires_ms
print(*sorted(set(sys.modules) - known))
"""


@pytest.mark.parametrize("prefix", ["", "listener.name.ssl."])
def test_a_node_with_certificates_imports_what_reads_them_before_its_loop_runs(tmp_path: Path, prefix: str) -> None:
    make_certificates(tmp_path)
    files = [str(tmp_path / TLS_DIRECTORY / name) for name in ("node.pem", "ca.pem")]
    command = [sys.executable, "-c", READ, f"{prefix}ssl.keystore.location", *files]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == []
