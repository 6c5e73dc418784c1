"""Patterns of clients: what is refused, and that a match costs an event loop little whatever the pattern is."""

from __future__ import annotations

import re

import pytest

from common.client_metrics import SELECTORS, match_of, reading_match
from common.client_patterns import PATTERN_BYTES_MAX, SHORT_PATTERN_BYTES_MAX, UNICODE_CLASSES_MAX, matcher

VALUE = "ab" * 128  # as long as a client's value may be
LONGEST_STEP = 10_000  # units of a microsecond: half of what a callback may take
SLOW = [
    r".*a.{100}",
    r".*a.{500}",
    r"(a|b)*a(a|b){300}",
    r"(?:a?b?){499}(?:.?){400}",
    r"(?:.?){999}",
    r"(?:\C?){999}",
    r"(?:\C?\C?){400}(?:\C?){900}",
    r"(?:.*a.{90}){8}",
    r"(?:(?:\C?){30}a?){30}",
    r"(?:[a-y]?[b-z]?){499}",
    r".*a.{300}.*b.{300}.*a.{300}",
]
USUAL = [
    r".*",
    r"orders-[0-9]+-.*",
    r"(?i)(?:prod|staging)[-_.](?:eu|us)-[a-z]+-\d{1,4}(?:-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?",
    r"(?i)[\pL\pN_-]+",
    r"\pL+-\pL+",
    r"[A-Za-z0-9._-]{1,249}",
    "|".join(f"payments-{number}" for number in range(70)),
]


def readable(pattern: str, bytes_max: int) -> bool:
    try:
        matcher(pattern, bytes_max)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("pattern", SLOW)
def test_a_slow_pattern_that_is_matched_on_the_loop_is_short(pattern: str) -> None:
    if readable(pattern, SHORT_PATTERN_BYTES_MAX):
        matches = matcher(pattern, SHORT_PATTERN_BYTES_MAX)
        assert matches.cost(VALUE) <= LONGEST_STEP


def test_slow_patterns_cost_what_they_take() -> None:
    """10 ns for each byte and instruction: the slowest ones took 4 to 9."""
    slow, quick = matcher(r"(?:\C?){999}"), matcher("orders-.*")
    assert slow.cost("x" * 1_000) > 1_000 * 2_000 / 100
    assert slow.cost("ä" * 500) == slow.cost("x" * 1_000), "RE2 takes bytes, not characters"
    assert quick.cost("orders-17") < 10


@pytest.mark.parametrize("bytes_max", [PATTERN_BYTES_MAX, SHORT_PATTERN_BYTES_MAX])
@pytest.mark.parametrize("pattern", USUAL)
def test_what_people_write_is_taken(pattern: str, bytes_max: int) -> None:
    assert readable(pattern, bytes_max)


def test_examples_of_the_documentation() -> None:
    assert readable(".{999}", PATTERN_BYTES_MAX)
    assert not readable(".{999}.{999}", PATTERN_BYTES_MAX)
    assert readable(".{250}", SHORT_PATTERN_BYTES_MAX)
    assert not readable(".{500}", SHORT_PATTERN_BYTES_MAX)


@pytest.mark.parametrize("pattern", SLOW)
def test_slow_patterns_are_taken_where_a_thread_matches_them(pattern: str) -> None:
    assert readable(pattern, PATTERN_BYTES_MAX)


def test_a_refusal_says_what_is_allowed() -> None:
    for pattern, reason in {
        "x" * 1_001: "a pattern may have 1000 characters",
        r"\pL" * (UNICODE_CLASSES_MAX + 1): r"a pattern may have 20 classes of Unicode (\p, \P)",
        r"(?:.?){999}(?:.?){999}": "the pattern is too large: compiled it may take 256 KiB",
        "(": "missing ): (",
    }.items():
        with pytest.raises(ValueError, match="^" + re.escape(reason)):
            matcher(pattern)


def test_groups_take_no_longer() -> None:
    """Nobody asks what they hold. RE2 would look for it after the match, much more slowly."""
    assert matcher("(a|b)*a(a|b){300}").cost(VALUE) == matcher("(?:a|b)*a(?:a|b){300}").cost(VALUE)


def test_all_patterns_of_a_subscription_are_read_in_steps() -> None:
    patterns = [selector + "=.*a.{50}" for selector in SELECTORS]
    assert len(list(reading_match(patterns))) == len(patterns)
    with pytest.raises(ValueError, match="together"):
        match_of([selector + r"=\pL\pL\pL\pL" for selector in SELECTORS])
