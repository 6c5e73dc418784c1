"""Where the demonstration runs: an embedded cluster, or the one of docker-compose.yml."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from bench.embedded import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[2]
SPARK_JOB = Path(__file__).with_name("spark_carriers.py")
TABLE_JOB = Path(__file__).with_name("planes_table.py")
SPARK_TIMEOUT_S = 600
OVERLAY = Path(__file__).with_name("docker-compose.demo.yml")
SETTINGS = {  # the same as in the overlay
    "group.initial.rebalance.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "tidelog.tier.export.interval.ms": "1000",
    "tidelog.tier.proposals.interval.ms": "500",
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

    def job(self, *words: str) -> dict[str, Any]:
        """The report of `tidelog spark …`, which ends with 0."""
        ...

    def export(self, topic: str, schema: str) -> dict[str, Any]:
        """Export to Iceberg, then what `planes_table.py` prints of the table."""
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
        return _rows([sys.executable, "-", uri, topic], {})

    def job(self, *words: str) -> dict[str, Any]:
        uri = f"file://{self._cluster.data.resolve()}/tier"
        line = [sys.executable, "-m", "tidelog", "spark", words[0], "--tier", uri, "--json", *words[1:]]
        return _report(_run(line, {}))

    def export(self, topic: str, schema: str) -> dict[str, Any]:
        folder = self._cluster.data.resolve() / "exported"
        folder.mkdir()
        (folder / "schema").write_text(schema)
        self.job("export", "--topic", topic, *_export_words(str(folder)))
        line = [sys.executable, "-", f"{folder}/catalog.db", folder.as_uri(), _table_of(topic)]
        return _rows(line, {}, TABLE_JOB)[0]


class ComposedDemo:
    """docker-compose.yml under a project name of its own, with MinIO; Spark runs in its own container."""

    def __init__(self, ports: tuple[int, int, int] = (19092, 19093, 19094)) -> None:
        self._environment = {f"HOST_PORT_{number}": str(port) for number, port in enumerate(ports)}
        self._environment |= {"PROXY_PORT": str(ports[0] + 1_000), "MINIO_CONSOLE_PORT": str(ports[0] + 1_001)}
        self._environment |= {"CONSOLE_PORT": str(ports[0] + 1_002)}
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
        job = 'exec python - "$TIDELOG_TIER_URI" "$0"'
        return _rows(
            [*self._command, "run", "--rm", "-T", "--build", "spark", "sh", "-c", job, topic], self._environment
        )

    def job(self, *words: str) -> dict[str, Any]:
        line = [*self._command, "run", "--rm", "-T", "spark", "tidelog", "spark", words[0], "--json", *words[1:]]
        return _report(_run(line, self._environment))

    def export(self, topic: str, schema: str) -> dict[str, Any]:
        """In one container, for the table lies in its own files."""
        words = shlex.join(["tidelog", "spark", "export", "--topic", topic, *_export_words("/tmp/exported")])
        table = shlex.join(["python", "-", "/tmp/exported/catalog.db", "file:///tmp/exported", _table_of(topic)])
        made = f"mkdir /tmp/exported && printf %s {shlex.quote(schema)} > /tmp/exported/schema"
        script = f"{made} && {words} >&2 </dev/null && exec {table}"
        line = [*self._command, "run", "--rm", "-T", "spark", "sh", "-c", script]
        return _rows(line, self._environment, TABLE_JOB)[0]

    @property
    def _command(self) -> list[str]:
        files = ["--file", str(ROOT / "docker-compose.yml"), "--file", str(OVERLAY)]
        return ["docker", "compose", "--project-name", "tidelog-demo", *files]

    def _compose(self, *words: str) -> str:
        return _run([*self._command, *words], self._environment)

    def _remove(self) -> None:
        self._compose("--profile", "spark", "down", "--volumes", "--timeout", "40")


def _rows(command: list[str], environment: dict[str, str], job: Path = SPARK_JOB) -> list[dict[str, Any]]:
    """Give the job to a Python that waits for it; Spark prints what it likes beside the one line of rows."""
    printed = _run(command, environment, job.read_text())
    lines = [line for line in printed.splitlines() if line.startswith("[{")]
    if not lines:
        raise RuntimeError("the Spark job printed no rows")
    rows: list[dict[str, Any]] = json.loads(lines[-1])
    return rows


def _report(printed: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
    return report


def _export_words(folder: str) -> list[str]:
    words = ["--to", "iceberg", "--output", f"file://{folder}", "--catalog-file", f"{folder}/catalog.db"]
    return [*words, "--value-format", "json", "--value-schema", f"{folder}/schema"]


def _table_of(topic: str) -> str:
    return f"tidelog.{topic}"


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
