"""The page of metrics: whole in Prometheus' format, made in pieces, while what it shows changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from common.metric_catalogue.metric import Label, Metric, counter, gauge
from common.metrics import COUNTED_AT_ONCE, SAMPLES_AT_ONCE, Histogram, Metrics, counted
from tests.common.metric_rules import catalogue_problems, problems

BOUNDS = (0.1, 1.0)
NUMBER, MORE = Label("number", "a number", 5), Label("more", "what else", 1)
CATALOGUE = {
    metric.name: metric
    for metric in (
        gauge("tidelog_many", "Many.", "Look.", NUMBER),
        counter("tidelog_many_total", "Many more.", "Look.", NUMBER),
        gauge("tidelog_one", "One.", "Look."),
        Metric("tidelog_lasted_seconds", "summary", "How long.", "Look.", (Label("kind", "which", 1),)),
        Metric("tidelog_took_seconds", "histogram", "How long each.", "Look.", buckets=BOUNDS),
        Metric("tidelog_free", "gauge", "What clients name.", "Look.", (NUMBER,), own_labels=True),
    )
}


def many(values: Mapping[int, float]) -> Iterator[tuple[Mapping[str, str], float]]:
    for number in list(values):
        yield {"number": str(number), "more" if number % 2 else "other": 'a "b"\\\n'}, values.get(number, -1.0)


@pytest.mark.parametrize("count", [0, 1, SAMPLES_AT_ONCE, SAMPLES_AT_ONCE + 1, 3 * SAMPLES_AT_ONCE])
def test_a_page_of_pieces_is_one_page(count: int) -> None:
    metrics, values = Metrics(CATALOGUE), {number: float(number) for number in range(count)}
    metrics.family("tidelog_many", lambda: many(values))
    metrics.family("tidelog_many_total", lambda: many(values))
    metrics.gauge("tidelog_one", lambda: 1)
    metrics.summary("tidelog_lasted_seconds", lambda: [({"kind": "k"}, (2, 0.5))])
    pieces = list(metrics.pieces())
    assert max(piece.count(b"\n") for piece in pieces) <= SAMPLES_AT_ONCE + 2
    text = b"".join(pieces).decode()
    assert text == metrics.text().decode() and problems(text) == []
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.labels["number"]: sample.value for sample in found["tidelog_many"].samples} == {
        str(number): value for number, value in values.items()
    }
    assert len(found["tidelog_many"].samples) == count
    assert [sample.value for sample in found["tidelog_lasted_seconds"].samples] == [2, 0.5]


def test_values_may_go_while_the_page_is_made() -> None:
    metrics, values = Metrics(CATALOGUE), dict.fromkeys(range(2 * SAMPLES_AT_ONCE), 1.0)
    metrics.family("tidelog_many", lambda: many(values))
    pieces = metrics.pieces()
    next(pieces)
    values.clear()
    assert b"".join(pieces).count(b"\n") == SAMPLES_AT_ONCE


@given(st.lists(st.none() | st.integers(0, 9)))
def test_pauses_of_a_reader_are_pieces_and_change_nothing(steps: list[int | None]) -> None:
    metrics = Metrics(CATALOGUE)
    metrics.family("tidelog_many", lambda: (step if step is None else ({"number": str(step)}, 1.0) for step in steps))
    pieces = list(metrics.pieces())
    assert len(pieces) == steps.count(None) + 1
    lines = [line for line in b"".join(pieces).decode().splitlines() if not line.startswith("#")]
    assert lines == [f'tidelog_many{{number="{step}"}} 1.0' for step in steps if step is not None]


@given(st.integers(0, 3 * COUNTED_AT_ONCE), st.integers(0, 5))
def test_many_things_are_counted_in_stretches(count: int, more: int) -> None:
    metrics = Metrics(CATALOGUE)
    metrics.family("tidelog_one", lambda: counted(range(count), lambda number: number % 2 == 0, more))
    pieces = list(metrics.pieces())
    assert len(pieces) == 1 + count // COUNTED_AT_ONCE
    assert b"".join(pieces).decode().endswith(f"tidelog_one {(count + 1) // 2 + more}.0\n")


@given(st.lists(st.floats(0, 10)))
def test_a_histogram_counts_each_value_in_its_bucket(values: list[float]) -> None:
    metrics, histogram = Metrics(CATALOGUE), Histogram(BOUNDS)
    for value in values:
        histogram.add(value)
    metrics.histogram("tidelog_took_seconds", lambda: histogram)
    text = metrics.text().decode()
    assert problems(text) == []
    (family,) = text_string_to_metric_families(text)
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    for bound in BOUNDS:
        assert found["tidelog_took_seconds_bucket", str(bound)] == sum(value <= bound for value in values)
    assert found["tidelog_took_seconds_bucket", "+Inf"] == found["tidelog_took_seconds_count", None] == len(values)
    assert found["tidelog_took_seconds_sum", None] == pytest.approx(sum(values))


def test_what_the_catalogue_does_not_declare_cannot_be_shown() -> None:
    metrics = Metrics(CATALOGUE)
    metrics.gauge("tidelog_one", lambda: 1)
    for name in ("tidelog_one", "tidelog_other", "tidelog_many_total", "tidelog_lasted_seconds"):
        with pytest.raises(ValueError, match=name):
            metrics.gauge(name, lambda: 1)
    with pytest.raises(ValueError, match="tidelog_took_seconds"):
        metrics.family("tidelog_took_seconds", list)
    assert metrics.names == ["tidelog_one"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["tidelog_one 1"], ""),
        (['tidelog_many{number="1"} 1'], ""),
        (['tidelog_free{number="1",theirs="x"} 1'], ""),
        (["tidelog_unheard 1"], "not in the catalogue"),
        (["tidelog_many 1"], "labels"),
        (['tidelog_many{number="1",more="2"} 1'], "labels"),
        ([f'tidelog_many{{number="{number}"}} 1' for number in range(5)], ""),
        ([f'tidelog_many{{number="{number}"}} 1' for number in range(6)], "6 values"),
    ],
)
def test_pages_are_compared_with_the_catalogue(lines: list[str], problem: str) -> None:
    found = catalogue_problems("\n".join(lines), CATALOGUE)
    assert (len(found) == 1 and problem in found[0]) if problem else not found
