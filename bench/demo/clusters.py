"""Where the demonstration runs: an embedded cluster, or the one of docker-compose.yml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from bench.embedded import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[2]
SPARK_JOB = Path(__file__).with_name("spark_carriers.py")
SPARK_TIMEOUT_S = 600
OVERLAY = Path(__file__).with_name("docker-compose.demo.yml")
SETTINGS = {  # the same as in the overlay
    "group.initial.rebalance.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "tidelog.tier.roll.ms": "2000",
}


class DemoCluster(Protocol):
    bootstrap: str

    def __enter__(self) -> DemoCluster: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def kill_broker(self, number: int) -> None:
        """SIGKILL to its process."""
        ...

    def restart_broker(self, number: int) -> None: ...

    def spark(self, topic: str) -> list[dict[str, Any]]:
        """The rows that the job `spark_carriers.py` prints; it sees the bucket, and no broker."""
        ...


class EmbeddedDemo:
    """Three brokers and three controllers as processes here, the object store in a directory."""

    def __init__(self) -> None:
        self._cluster = EmbeddedCluster(settings=SETTINGS)
        self.bootstrap = ""

    def __enter__(self) -> EmbeddedDemo:
        self._cluster.__enter__()
        self.bootstrap = self._cluster.bootstrap
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    def kill_broker(self, number: int) -> None:
        self._cluster.kill(f"broker-{number}")

    def restart_broker(self, number: int) -> None:
        self._cluster.command("start", f"broker-{number}")

    def spark(self, topic: str) -> list[dict[str, Any]]:
        uri = f"file://{self._cluster.data.resolve()}/tier"
        return _rows([sys.executable, "-", uri, topic, str(self._cluster.data / "java")], {})


class ComposedDemo:
    """docker-compose.yml under a project name of its own, with MinIO; Spark runs in its own container."""

    def __init__(self, ports: tuple[int, int, int] = (19092, 19093, 19094)) -> None:
        self._environment = {f"HOST_PORT_{number}": str(port) for number, port in enumerate(ports)}
        self.bootstrap = ",".join(f"localhost:{port}" for port in ports)

    def __enter__(self) -> ComposedDemo:
        try:
            self._compose("up", "--build", "--wait")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def kill_broker(self, number: int) -> None:
        container = self._compose("ps", "--quiet", f"broker-{number}").strip()
        command = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        os.kill(int(found.stdout), signal.SIGKILL)

    def restart_broker(self, number: int) -> None:
        """Its restart policy has done so already."""

    def spark(self, topic: str) -> list[dict[str, Any]]:
        job = 'exec python - "$TIDELOG_TIER_URI" "$0" /tmp/java'
        return _rows(
            [*self._command, "run", "--rm", "-T", "--build", "spark", "sh", "-c", job, topic], self._environment
        )

    @property
    def _command(self) -> list[str]:
        files = ["--file", str(ROOT / "docker-compose.yml"), "--file", str(OVERLAY)]
        return ["docker", "compose", "--project-name", "tidelog-demo", *files]

    def _compose(self, *words: str) -> str:
        return _run([*self._command, *words], self._environment)

    def _remove(self) -> None:
        self._compose("--profile", "spark", "down", "--volumes", "--timeout", "40")


def _rows(command: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Give the job to a Python that waits for it; Spark prints what it likes beside the one line of rows."""
    printed = _run(command, environment, SPARK_JOB.read_text())
    lines = [line for line in printed.splitlines() if line.startswith("[{")]
    if not lines:
        raise RuntimeError("the Spark job printed no rows")
    rows: list[dict[str, Any]] = json.loads(lines[-1])
    return rows


def _run(command: list[str], environment: dict[str, str], given: str | None = None) -> str:
    done = subprocess.run(
        command,
        input=given,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
