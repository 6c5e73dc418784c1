"""What Prometheus and Grafana read: current, sound by promtool, explained in the docs, and of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from common.metric_catalogue.catalogue import METRICS
from tests.boards.alarm_cases import CASES
from tests.boards.alarms import ALARMS
from tests.boards.objectives import OBJECTIVES
from tests.boards.observe_files import BOARDS, IN_CHART, OBSERVE, PAGE, RULES, files, observed

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\btidelog_[a-z0-9_]+")
PART = re.compile("_(?:count|sum|bucket)$")
RULE_FILES = sorted(str(path) for path in observed() if path.parent == RULES)
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")


def test_the_files_are_current() -> None:
    made = files()
    for path, text in made.items():
        assert path.read_text() == text, "python -m tests.boards.observe_files writes them"
    kept = {
        path for root in (OBSERVE, IN_CHART) for folder in ("boards", "rules") for path in (root / folder).iterdir()
    }
    assert kept == set(made)


def test_boards_and_alarms_ask_for_metrics_that_exist() -> None:
    asked = [query for board in BOARDS for query in board.queries]
    asked += [variable.metric for board in BOARDS for variable in board.variables]
    asked += [alarm.expr for alarm in ALARMS] + [one.errors for one in OBJECTIVES]
    names = {name for query in asked for name in NAME.findall(query) if not name.endswith("_")}
    assert len(names) > 80
    assert {name for name in names if name not in METRICS and PART.sub("", name) not in METRICS} == set()


def test_panels_have_their_own_places() -> None:
    for path, text in observed().items():
        if path.suffix != ".json":
            continue
        board = json.loads(text)
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
            taken |= cells
            assert panel["type"] == "row" or panel["description"], panel["title"]
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_each_alarm_has_a_section_and_each_section_an_alarm() -> None:
    text = (ROOT / PAGE).read_text()
    sections = set(re.findall(r"^### (Tidelog\w+)$", text, re.MULTILINE))
    assert sections == {alarm.section for alarm in ALARMS}
    assert len({alarm.name for alarm in ALARMS}) == len(ALARMS)
    assert {alarm.severity for alarm in ALARMS} == {"page", "ticket"}
    assert set(CASES) == {alarm.name for alarm in ALARMS}


@needs_promtool
def test_promtool_finds_nothing_wrong() -> None:
    done = subprocess.run(["promtool", "check", "rules", *RULE_FILES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_of_the_compose_file_scrapes_each_of_its_nodes() -> None:
    services = re.findall(
        r"^  ((?:controller|broker|proxy)-\d+):\n    <<:", (ROOT / "docker-compose.yml").read_text(), re.M
    )
    targets = re.findall(r'"([\w-]+):9100"', (OBSERVE / "prometheus.yml").read_text())
    assert len(services) == 8 and sorted(targets) == sorted(services)


@needs_promtool
def test_promtool_takes_the_scrape_configurations(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    assert len(blocks) == 1
    for text in (blocks[0], (OBSERVE / "prometheus.yml").read_text()):
        file = tmp_path / "prometheus.yml"
        file.write_text(text.replace("docker/observe", str(OBSERVE)).replace("/etc/prometheus/rules", str(RULES)))
        done = subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rules found" in done.stdout
