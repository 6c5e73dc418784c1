"""Every number in every form: one that no request can hold is refused in words, before anything is asked."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.settings import INT_MAX, LONG_MAX, SettingError
from console.access.trouble import Trouble
from console.application import STATIC
from console.formats.limits import parse_limits
from console.page_list import ACTS, PAGES
from console.pages.groups import TARGETS
from console.pages.records import STARTS
from console.web.visit import NUMBER_CHARACTERS_MAX, parse_number
from records.builder import build_batch
from records.record import Record
from tests.console.fake_cluster import FakeClient, fetched, log_in, metadata, offsets, token_of, visitor

NAMED = re.compile(r'name="([a-z_.]+)"|ui\.(?:field|choice)\("([a-z_.]+)"')
FIELDS = sorted({
    one or other for path in (STATIC.parent / "templates").iterdir() for one, other in NAMED.findall(path.read_text())
} - {"csrf"})  # fmt: skip
WORDS: dict[str, st.SearchStrategy[str]] = {
    "to": st.sampled_from(list(TARGETS)),
    "from": st.sampled_from(list(STARTS)),
    "act": st.sampled_from(["pause", "resume", "cancel"]),
    "kind": st.sampled_from(["topic", "broker"]),
    "setting": st.just("retention.ms"),
    "limits": st.sampled_from(["ingress.bytes.per.second={}", "topics.max={}"]),
    "settings": st.just("retention.ms={}"),
    "topic": st.just("t"),
    "typed": st.just("t"),
    "name": st.just("t"),
    "cursor": st.just(""),
    "acls": st.just("[]"),
    "decode": st.just(""),
    "where": st.just(""),
    "key_form": st.just(""),
}
"""What a form needs before it comes to its numbers; {} is one."""
AT_LIMITS = st.sampled_from([at + step for at in (0, 1 << 15, 1 << 31, 1 << 63, 1 << 64) for step in (-1, 0, 1)])
NUMBERS = st.one_of(
    AT_LIMITS.map(str),
    AT_LIMITS.map(lambda number: str(-number)),
    st.integers().map(str),
    st.integers(20, 5_000).map(lambda digits: "9" * digits),
    st.integers(20, 5_000).map(lambda zeros: "0" * zeros + "9" * 25),
)
ADDRESS_CHARACTERS = 500
RAW = ("format requires", "out of range", "4300 digits", "too large to convert", "too large for its field")
"""What the languages' own errors, and the last guard of the client, say of such a number."""


class Client(FakeClient):
    def describe_groups(self, names: Any) -> Any:
        return {name: {"group_state": "Empty", "error": "no group"} for name in names}


@pytest.fixture(scope="module")
def browser() -> Iterator[tuple[Any, str]]:
    batch = bytes(build_batch([Record(0, 5, b"k", b"v")]))
    answers = {"MetadataRequest": metadata("t"), "ListOffsetsRequest": offsets(0, 1),
               "FetchRequest": fetched([batch], stable=1)}  # fmt: skip
    with visitor(Client(answers)) as opened:
        log_in(opened)
        yield opened, token_of(opened)


def said(text: str) -> str:
    return html.unescape(text)


@pytest.mark.parametrize("act", [one for one in ACTS if not one.path.startswith("/tier")], ids=lambda act: act.path)
@settings(max_examples=5)
@given(data=st.data())
def test_a_form_says_that_a_number_cannot_be(browser: tuple[Any, str], act: Any, data: st.DataObject) -> None:
    opened, token = browser
    number = data.draw(NUMBERS)
    given_ = {"csrf": token}
    for name in FIELDS:
        words = data.draw(WORDS[name]) if name in WORDS else data.draw(st.sampled_from(["", number, number]))
        given_[name] = words.replace("{}", number)
    answer = opened.post(act.path.replace("{topic}", "t"), data=given_, headers={"hx-request": "true"})
    assert answer.status_code < 500
    assert not [one for one in RAW if one in said(answer.text)]


@pytest.mark.parametrize("page", [one for one in PAGES if not one.path.startswith("/audit/")], ids=lambda one: one.path)
@settings(max_examples=2)
@given(number=NUMBERS)
def test_an_address_says_that_a_number_cannot_be(browser: tuple[Any, str], page: Any, number: str) -> None:
    opened, _ = browser
    number = number[:ADDRESS_CHARACTERS]
    words = dict.fromkeys(FIELDS, number) | {"name": "t", "kind": "broker", "page": number, "first": number}
    answer = opened.get(page.path.replace("{topic}", "t"), params=words)
    assert answer.status_code < 500
    assert not [one for one in RAW if one in said(answer.text)]


@given(NUMBERS, st.integers(-LONG_MAX, 0), st.integers(1, LONG_MAX))
def test_a_number_is_within_its_limits_or_refused(text: str, low: int, high: int) -> None:
    if len(text) <= NUMBER_CHARACTERS_MAX and low <= int(text) <= high:
        assert parse_number("n", text, None, low, high) == int(text)
        return
    with pytest.raises(Trouble) as refused:
        parse_number("n", text, None, low, high)
    assert len(str(refused.value)) < 200


@given(NUMBERS)
def test_a_limit_fits_its_field_or_is_refused(text: str) -> None:
    try:
        (limit,) = parse_limits(f"a={text}").values()
    except SettingError:
        return
    assert 0 <= limit <= LONG_MAX


def test_the_largest_numbers_are_taken() -> None:
    assert parse_number("n", str(INT_MAX)) == INT_MAX
    assert parse_number("n", "", 7) == 7
    assert parse_limits(f"a={LONG_MAX}") == {"a": LONG_MAX}
