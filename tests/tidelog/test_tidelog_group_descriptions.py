"""A coordinator's error is not taken for a group without members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import pytest

from common.errors import ErrorCode
from tidelog.admin.group_descriptions import NOT_YET, PATIENCE_S, described_groups
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

READY, LOADING = ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Coordinators:
    """Answer for each group with one code after another, the last one for ever. Pauses pass at once."""

    def __init__(self, **codes: Iterable[ErrorCode]) -> None:
        self.codes = {name: list(of) for name, of in codes.items()}
        self.asked: list[list[str]] = []
        self.now_s = 0.0

    def describe_groups(self, names: list[str]) -> dict[str, dict[str, Any]]:
        self.asked.append(names)
        return {name: self._row(self.codes[name]) for name in names}

    def described(self) -> dict[str, dict[str, Any]]:
        return described_groups(cast("AdminClient", self), tuple(self.codes), lambda: self.now_s, self._pause)

    def _row(self, codes: list[ErrorCode]) -> dict[str, Any]:
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        state = {ErrorCode.NONE: "Stable", ErrorCode.GROUP_ID_NOT_FOUND: "Dead"}.get(code, "")
        return {"group_state": state, "error": f"[Error {code:d}] {code.name}: " if code else None}

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("code", NOT_YET)
def test_a_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    coordinators = Coordinators(a=[code, code, READY], b=[READY])
    assert {name: row["group_state"] for name, row in coordinators.described().items()} == {
        "a": "Stable",
        "b": "Stable",
    }
    assert coordinators.asked == [["a", "b"], ["a"], ["a"]]


def test_one_that_never_is_ready_ends_with_its_error() -> None:
    coordinators = Coordinators(a=[READY], b=[LOADING])
    with pytest.raises(Refused, match="b: COORDINATOR_LOAD_IN_PROGRESS"):
        coordinators.described()
    assert coordinators.now_s == pytest.approx(PATIENCE_S, abs=1.0)


def test_a_group_that_there_is_not_is_dead_and_a_refusal_names_the_group() -> None:
    assert Coordinators(a=[ErrorCode.GROUP_ID_NOT_FOUND]).described()["a"]["group_state"] == "Dead"
    with pytest.raises(Refused, match="a: GROUP_AUTHORIZATION_FAILED"):
        Coordinators(a=[ErrorCode.GROUP_AUTHORIZATION_FAILED]).described()
    assert Coordinators().described() == {}
