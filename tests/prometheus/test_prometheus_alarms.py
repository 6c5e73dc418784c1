"""Each alarm by `promtool test rules`: its cause raises it, and what is near does not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.boards.alarm_cases import CASES, Case
from tests.boards.alarms import BURNS, STATES, Alarm
from tests.boards.observe_files import RULES

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"),
]


@pytest.mark.parametrize("step_min", sorted({case.step_min for case in CASES.values()}))
@pytest.mark.parametrize("kept", [STATES, BURNS], ids=["states", "burns"])
def test_each_alarm_is_raised_by_its_cause_and_by_nothing_near(
    tmp_path: Path, kept: tuple[Alarm, ...], step_min: int
) -> None:
    tests = [
        _test(alarm.name, values, CASES[alarm.name], is_raised=is_raised)
        for alarm in kept
        if CASES[alarm.name].step_min == step_min
        for values, is_raised in ((CASES[alarm.name].raised, True), (CASES[alarm.name].quiet, False))
    ]
    names = ["alarms.yml"] if kept is STATES else ["objectives.yml", "burning.yml"]
    file = tmp_path / "alarms.yml"  # JSON is YAML
    rules: dict[str, Any] = {
        "rule_files": [str(RULES / name) for name in names],
        "evaluation_interval": f"{step_min}m",
        "tests": tests,
    }
    rules["group_eval_order"] = ["tidelog-objectives", "tidelog-burning"] if kept is BURNS else ["tidelog-alarms"]
    file.write_text(json.dumps(rules))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]


def _test(name: str, values: dict[str, str], case: Case, *, is_raised: bool) -> dict[str, Any]:
    """That the alarm is raised, by whether any of its series fires; promtool would want all their labels and texts."""
    expr = f'(count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)) > bool 0'
    sample = {"labels": "{}", "value": int(is_raised)}
    return {
        "name": f"{name}, {'raised' if is_raised else 'quiet'}",
        "interval": f"{case.step_min}m",
        "input_series": [{"series": series, "values": shown} for series, shown in values.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": f"{case.at_min}m", "exp_samples": [sample]}],
    }
