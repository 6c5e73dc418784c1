"""A Spark cluster of its own: a master and two workers from the pyspark package, real processes on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark

from bench.embedded import free_ports
from spark_offload.java_home import ensure_java

SPARK_HOME = Path(pyspark.__file__).parent
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = b"CoarseGrainedExecutorBackend"
START_TIMEOUT_S = 240.0
WORKERS = 2


class StandaloneCluster:
    """`with StandaloneCluster(directory) as cluster`: then `cluster.master` is what `--master` takes. `environment` is
    that of the processes, beside this one's; executors inherit it from their worker."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_NO_DAEMONIZE": "1",
            **(environment or {}),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_ports(2 + WORKERS)
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> StandaloneCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        if not ensure_java(self._directory / "java", self._environment):
            raise RuntimeError("no Java")
        try:
            port = str(self._port)
            self._start("master", MASTER, "--host", "127.0.0.1", "--port", port, "--webui-port", str(self._port + 1))
            self._wait(lambda state: True)
            for number in range(WORKERS):
                words = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
                words += ["--webui-port", str(self._port + 2 + number)]
                work = self._directory / f"worker-{number}"
                self._start(f"worker-{number}", WORKER, *words, "--work-dir", str(work), self.master)
            self._wait(lambda state: state["aliveworkers"] == WORKERS)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def kill_executor(self) -> int:
        """SIGKILL for one executor; its pid."""
        for worker in self._processes[1:]:
            for pid in _children(worker.pid):
                if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return pid
        raise RuntimeError("no executor is running")

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in sorted(self._directory.glob("*.log")))

    def _start(self, name: str, *words: str) -> None:
        with open(self._directory / f"{name}.log", "wb") as log:
            line = [str(SPARK_HOME / "bin" / "spark-class"), *words]
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=self._directory
            )
        self._processes.append(process)

    def _wait(self, is_there: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"a process of the Spark cluster ended\n{self.log()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port + 1}/json/", timeout=5) as answer:
                    if is_there(json.load(answer)):
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
                pass  # a master that has just begun answers with an empty page
            time.sleep(0.2)
        raise RuntimeError(f"the Spark cluster does not start\n{self.log()}")

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def python_without_tidelog(directory: Path) -> Path:
    """A Python with everything that is installed here but the code of this repository, as a cluster may have it."""
    packages = next(entry for entry in sys.path if entry.endswith("site-packages"))
    script = directory / "python-without-tidelog"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return script


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
