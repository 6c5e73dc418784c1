"""Metrics are named as Prometheus wants them, and those that pages speak of exist."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache

import pytest

from broker.security.usage import ThrottleReason
from common.metric_catalogue.catalogue import AREAS, METRICS
from common.node_settings.catalogue import NODE_SETTINGS
from tests.architecture.test_architecture_house import ROOMS, ROOT, python_files
from tests.common.metric_rules import name_problems, problems
from tests.common.metrics_page import PAGE, page
from tidelog.command_line import COMMANDS, GROUPS

NAME = re.compile(r"tidelog(_[a-zA-Z0-9]+)+")
PART = re.compile("_(?:count|sum|bucket)$")
NO_METRICS = {"tidelog_tier_generation"}  # a metadata record's field
SERIES_MAX = 100_000
SPOKEN_OF = re.compile(r"`(tidelog_[a-z0-9_]*[a-z0-9])(?:`|\{[a-z_]+[=}])")


@cache
def registered() -> set[str]:
    """Every metric's name stands in the code that registers it as one string."""
    strings = (
        node.value
        for path in python_files(*ROOMS)
        if not path.is_relative_to(ROOT / "common" / "metric_catalogue")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in strings if NAME.fullmatch(text)} - NO_METRICS


def test_the_catalogue_is_what_nodes_register() -> None:
    assert registered() - METRICS.keys() == set(), "is no metric of the catalogue"
    assert METRICS.keys() - registered() == set(), "is registered nowhere"
    assert len(METRICS) == sum(len(area.metrics) for area in AREAS), "a name stands twice"


def test_names_and_units() -> None:
    assert [problem for name in METRICS for problem in name_problems(name)] == []
    assert [name for name, metric in METRICS.items() if (metric.kind == "counter") != name.endswith("_total")] == []


def test_each_metric_says_what_it_means_and_what_to_do() -> None:
    for metric in METRICS.values():
        assert metric.meaning.endswith((".", ")")) and metric.act.endswith("."), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        for label in metric.labels:
            assert 1 <= label.values <= SERIES_MAX and label.meaning, (metric.name, label.name)


def test_the_page_of_metrics_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m tests.common.metrics_page writes it"


def test_the_catalogue_names_settings_and_commands_that_exist() -> None:
    words = PAGE.read_text()
    settings = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", words)) - {"retention.ms"}
    assert [name for name in settings if NODE_SETTINGS.get(name) is None] == []
    for command in set(re.findall(r"`tidelog ([a-z -]+)`", words)):
        first, *rest = command.split()
        assert first in COMMANDS or first in GROUPS, command
        for second in rest:
            assert second in GROUPS[first] or second in commands_of(first), command


def commands_of(group: str) -> set[str]:
    app = importlib.import_module(f"tidelog.commands.{group}").app
    return {str(one.name or one.callback.__name__) for one in app.registered_commands}


@pytest.mark.parametrize("page", ["operations", "quotas"])
def test_pages_name_each_reason_why_a_client_waits(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert [reason for reason in ThrottleReason if f"`{reason}`" not in text] == []


def test_pages_name_metrics_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    listed = {name for page in pages for name in SPOKEN_OF.findall(page.read_text())}
    assert {name for name in listed if name not in METRICS and PART.sub("", name) not in METRICS} == set()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# HELP tidelog_a_ms x\n# TYPE tidelog_a_ms gauge\ntidelog_a_ms 1\n", "abbreviated"),
        ("# HELP tidelog_a_total x\n# TYPE tidelog_a_total gauge\n", "counters and nothing else"),
        ("# HELP tidelog_a x\n# TYPE tidelog_a counter\n", "counters and nothing else"),
        ("# TYPE tidelog_a gauge\n", "no help text"),
        ("# HELP tidelog_a_hours x\n# TYPE tidelog_a_hours gauge\n", "the unit is seconds, not hours"),
        ("# HELP tidelog_a x\n# TYPE tidelog_a gauge\ntidelog_a{le=\"x\"} 1\n", "label le"),
        ("tidelog_a 1\n", "no declared metric"),
        ("# HELP tidelog_a x\n# TYPE tidelog_a gauge\ntidelog_a_sum 1\n", "no declared metric"),
        ("# HELP tidelog_a x\n# TYPE tidelog_a summary\ntidelog_a_sum 1\ntidelog_a_count 1\n", ""),
        ("# HELP tidelog_a x\n# TYPE tidelog_a gauge\ntidelog_a{topic=\"aB\",what=\"x y\"} 1\n", ""),
    ],
)  # fmt: skip
def test_the_rules_find_what_promtool_finds(text: str, problem: str) -> None:
    found = problems(text)
    assert (len(found) == 1 and problem in found[0]) if problem else not found
