"""The table of docs/authorization.md, from Apache Kafka's answers: `python -m tests.broker.gate_oracle.table`.

A right that is *enough* changes the answer of who has no other; one that is *needed* changes it when it is taken from
who has all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.broker.gate_oracle.answers import CLOSED, Answers, read
from tests.broker.gate_oracle.rights import ALL, NONE, SINGLE

ANSWERS = Path(__file__).parent / "answers.txt"
NOTHING = "-"
HEAD = ("API", "asked", "versions", "enough", "needed", "without any right", "left out")


def rows(answers: Answers) -> Iterator[tuple[str, ...]]:
    before: list[str] = []
    versions: list[int] = []
    for (api, label, version), by_right in answers.items():
        row = [api, label, *_cells({right: _plain(answer) for right, answer in by_right.items()})]
        if row != before and before:
            yield _row(before, versions)
        if row != before:
            before, versions = row, []
        versions.append(version)
    yield _row(before, versions)


def _row(cells: list[str], versions: list[int]) -> tuple[str, ...]:
    span = str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"
    return (*cells[:2], span, *cells[2:])


def _cells(by_right: dict[str, Any]) -> list[str]:
    enough = [right for right in SINGLE if by_right[right] != by_right[NONE]]
    needed = [right for right in SINGLE if by_right[f"-{right}"] != by_right[ALL]]
    codes = sorted(
        f"`{code}` in {path}" for path, code in _codes(by_right[NONE]) if code.endswith("_AUTHORIZATION_FAILED")
    )
    hidden = sorted(_names(by_right[ALL]) - _names(by_right[NONE]))
    return [_rights(enough), _rights(needed), "; ".join(dict.fromkeys(codes)) or NOTHING, ", ".join(hidden) or NOTHING]


def _rights(rights: list[str]) -> str:
    by_resource: dict[str, list[str]] = {}
    for right in rights:
        resource, operation = right.split(":")
        by_resource.setdefault(resource, []).append(operation)
    return "; ".join(f"{resource} {', '.join(operations)}" for resource, operations in by_resource.items()) or NOTHING


def _plain(answer: str) -> Any:
    """Without the lists of operations, which change with every right."""
    if answer == CLOSED:
        return answer
    return json.loads(
        answer, object_hook=lambda row: {k: v for k, v in row.items() if "authorized_operations" not in k}
    )


def _codes(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _codes(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for one in value:
            yield from _codes(one, path)
    elif path.endswith("error_code"):
        yield path, value


def _names(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {str(value[field]) for field in ("name", "topic", "topic_id", "group_id") if value.get(field)}
        return own.union(*(_names(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(_names(one) for one in value))
    return set()


def markdown() -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *rows(read(ANSWERS))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(markdown(), end="")
