"""A shell that completes a name gets none that it would obey."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.admin.name_completion import plain_names


@given(st.lists(st.text()))
def test_every_completion_is_one_word_that_means_itself(names: list[str]) -> None:
    assert all(shlex.quote(name) == name and name.isprintable() for name in plain_names(names, ""))


@pytest.mark.parametrize("name", ["x$(touch y)", "a;b", "a b", "a\nb", "a\x1b[31m", "`b`", "~", "--execute", ""])
def test_a_name_that_is_more_than_a_word_is_left_out(name: str) -> None:
    assert plain_names([name, "billing", "orders.v1-2_x", "other"], "") == ["billing", "orders.v1-2_x", "other"]
    assert plain_names([name, "billing", "other"], "ot") == ["other"]
