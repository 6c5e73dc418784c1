"""One project of docker-compose.yml under a name and ports of its own, so that it disturbs no other."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path

from bench.embedded import free_ports
from release.project import version

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"tidelog:{version()}"
BROKERS = 3
UP_TIMEOUT_S = 600.0


class ComposeProject:
    """`up` to `down`; every call raises with what docker said when it fails."""

    def __init__(self) -> None:
        self.name = f"tidelog-test-{uuid.uuid4().hex[:8]}"
        first = free_ports(BROKERS + 5)  # none of those that the system gives to clients meanwhile
        self.ports, self.proxy_port = list(range(first, first + BROKERS)), first + BROKERS
        self.console_port = self.proxy_port + 1
        self.prometheus_port, self.grafana_port = self.proxy_port + 2, self.proxy_port + 3
        self._environment = (
            os.environ
            | {"TIDELOG_VERSION": version()}
            | {f"HOST_PORT_{i}": str(port) for i, port in enumerate(self.ports)}
        )
        self._environment |= {"PROXY_PORT": str(self.proxy_port), "MINIO_CONSOLE_PORT": str(self.console_port)}
        self._environment |= {"PROMETHEUS_PORT": str(self.prometheus_port), "GRAFANA_PORT": str(self.grafana_port)}
        self._environment |= {"CONSOLE_PORT": str(self.proxy_port + 4)}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.ports)

    def compose(self, *arguments: str, timeout_s: float = 120.0) -> str:
        return self._run("docker", "compose", "--project-name", self.name, *arguments, timeout_s=timeout_s)

    def docker(self, *arguments: str, timeout_s: float = 60.0) -> str:
        return self._run("docker", *arguments, timeout_s=timeout_s)

    def up(self) -> None:
        self.compose("up", "--build", "--wait", timeout_s=UP_TIMEOUT_S)

    def remove(self) -> None:
        self.compose(
            "--profile", "spark", "--profile", "observe", "down", "--volumes", "--remove-orphans", "--timeout", "40"
        )

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inspect(self, service: str) -> dict[str, object]:
        found: list[dict[str, object]] = json.loads(self.docker("inspect", self.container(service)))
        return found[0]

    def here(self, command: list[str], timeout_s: float = 120.0) -> str:
        """What a program on this host prints."""
        return self._run(*command, timeout_s=timeout_s)

    def typed(self, line: str, timeout_s: float = 120.0) -> str:
        """What a shell prints that is in the project's directory, where `docker compose` means this project."""
        named = f"export COMPOSE_PROJECT_NAME={self.name}; {line}"
        return self._run("bash", "-c", named, timeout_s=timeout_s)

    def in_volumes(self, script: str) -> str:
        """What a shell prints that sees the volumes of the secrets below /cluster and /store."""
        volumes = (f"{self.name}_cluster-secret:/cluster:ro", f"{self.name}_object-store-credentials:/store:ro")
        mounts = [word for volume in volumes for word in ("--volume", volume)]
        return self.docker("run", "--rm", *mounts, "--entrypoint", "sh", IMAGE, "-c", script)

    def _run(self, *command: str, timeout_s: float) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout
