"""The profile `observe`: Prometheus reaches every node and takes the rules, Grafana shows the boards."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.boards.alarms import ALARMS
from tests.boards.observe_files import BOARDS
from tests.compose.compose_project import ComposeProject
from tests.compose.observing_images import need_images
from tests.faults.raw_client import wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
NODES, PATIENCE_S = 8, 120.0


@pytest.fixture(scope="module")
def observed(project: ComposeProject) -> ComposeProject:
    need_images(project)
    project.compose("--profile", "observe", "up", "--wait", "prometheus", "grafana", timeout_s=300.0)
    return project


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as page:
        return json.load(page)


def test_prometheus_reaches_every_node_and_takes_the_rules(observed: ComposeProject) -> None:
    def reached() -> list[str]:
        targets = asked(observed.prometheus_port, "/api/v1/targets")["data"]["activeTargets"]
        return [target["labels"]["instance"] for target in targets if target["health"] == "up"]

    wait_until(lambda: len(reached()) == NODES, PATIENCE_S)
    groups = asked(observed.prometheus_port, "/api/v1/rules?type=alert")["data"]["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} == {alarm.name for alarm in ALARMS}


def test_grafana_shows_the_boards(observed: ComposeProject) -> None:
    found = {board["uid"]: board["title"] for board in asked(observed.grafana_port, "/api/search?type=dash-db")}
    assert found == {board.uid: board.title for board in BOARDS}
