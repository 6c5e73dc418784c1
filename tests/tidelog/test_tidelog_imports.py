"""What the processes of nodes have imported: memory that every node of every cluster pays for."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
