"""Metrics are named as Prometheus wants them, and those that pages speak of exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.architecture.test_architecture_house import ROOMS, ROOT, python_files
from tests.common.metric_rules import name_problems, problems

NAME = re.compile(r"tidelog(_[a-zA-Z0-9]+)+")
PART = re.compile("_(?:count|sum)$")  # of a summary
SPOKEN_OF = re.compile(r"`(tidelog_[a-z0-9_]*[a-z0-9])(?:`|\{[a-z_]+[=}])")


@cache
def metric_names() -> set[str]:
    """Every metric's name stands in the code as one string."""
    strings = (
        node.value
        for path in python_files(*ROOMS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in strings if NAME.fullmatch(text)}


def test_names_and_units() -> None:
    names = metric_names()
    assert "tidelog_tier_copied_bytes_total" in names and len(names) > 80
    assert [problem for name in names for problem in name_problems(name)] == []


def test_pages_name_metrics_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    told = {name for page in pages for name in SPOKEN_OF.findall(page.read_text())}
    names = metric_names()
    assert {name for name in told if name not in names and PART.sub("", name) not in names} == set()


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
