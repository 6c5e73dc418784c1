"""What a search asks for, and what it shows."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings import INT_MAX
from console.access.trouble import Trouble
from console.formats.record_decoders import decoder_of
from console.formats.record_lines import line_of
from console.pages.records import PARTITIONS_MAX, ROWS_MAX, partitions_of
from console.queries.newest import (
    CHARACTERS_MAX,
    OFFSETS_MAX,
    STEPS_MAX,
    STEPS_WHOLE,
    begin,
    between,
    nearer,
    newest,
)
from console.queries.record_scan import Span
from records.builder import build_batch
from records.record import Record
from tests.console.fake_cluster import TOPIC_ID, FakeClient, log_in, metadata, offsets, placed, token_of, visitor
from wire.messages import FetchResponse


def test_partitions_are_written_as_numbers_and_ranges() -> None:
    assert partitions_of("") is None
    assert partitions_of(" 7, 0,3-5 ,4") == [0, 3, 4, 5, 7]
    assert partitions_of(f"{INT_MAX}-{INT_MAX}") == [INT_MAX]
    assert partitions_of(f"0-{PARTITIONS_MAX - 1}") == list(range(PARTITIONS_MAX))


@pytest.mark.parametrize(
    "text",
    [
        ",".join(f"{at}00000-{at}99999" for at in range(1, 101)),
        f"0-{PARTITIONS_MAX}",
        ",".join(["0-99999"] * 1_000),
        f"0-{INT_MAX}",
        str(INT_MAX + 1),
        f"{INT_MAX}-{INT_MAX + 1}",
        "99999999999999999999",
        "0," * 1_000_000,
        "5-3",
        "-1",
        "1-",
        "x",
    ],
)
def test_partitions_that_cannot_be_there_are_refused_before_their_numbers_are_made(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Trouble):
            partitions_of(text)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def partitions(times: Sequence[int], count: int, size: int = 8) -> Callable[[Any], Any]:
    """Answers of partitions with so many records, each a batch: the times of partition 0 begin at the first of these,
    and so on. An answer has a megabyte of each partition, or one batch."""
    topic = FetchResponse.FetchableTopicResponse
    value = b"v" * size

    def of(partition: int, first: int) -> Any:
        found = bytearray()
        for at in range(first, count):
            if len(found) + size > 1 << 20 and found:
                break
            found += placed(build_batch([Record(0, times[partition] + at, None, value)]), at)
        return topic.PartitionData(
            partition_index=partition, error_code=0, high_watermark=count, last_stable_offset=count,
            log_start_offset=0, aborted_transactions=[], records=bytes(found),
        )  # fmt: skip

    def answer(request: Any) -> Any:
        rows = [of(one.partition, one.fetch_offset) for one in request.topics[0].partitions]
        return FetchResponse(error_code=0, responses=[topic(topic="t", topic_id=TOPIC_ID, partitions=rows)])

    return answer


def searched(answer: Callable[[Any], Any], count: int, rows: int, partitions: int = 1) -> tuple[list[Any], str]:
    """The partitions and offsets of the newest records, and what the page says of them."""
    answers = {
        "MetadataRequest": metadata("t", partitions=partitions),
        "ListOffsetsRequest": offsets(0, count),
        "FetchRequest": answer,
    }
    with visitor(FakeClient(answers)) as browser:
        log_in(browser)
        given = {"csrf": token_of(browser), "from": "end", "rows": str(rows)}
        text = browser.post("/topics/t/records", data=given).text
    found = re.findall(r'<td class="number">(\d+)</td><td class="number">(\d+)</td>', text)
    return [(int(one), int(offset)) for one, offset in found], text[text.index('<tr class="end"') :]


def test_the_newest_of_two_partitions_are_those_with_the_newest_times() -> None:
    found, said = searched(partitions([0, 1_000_000], 700), 700, ROWS_MAX, 2)
    assert found == [(1, offset) for offset in range(699, 199, -1)]
    assert "only" not in said


def test_the_newest_of_large_records_are_all_found() -> None:
    found, said = searched(partitions([0], 60, 200_000), 60, 50)
    assert found == [(0, offset) for offset in range(59, 9, -1)]
    assert "only" not in said


def test_where_the_newest_are_too_large_the_newest_of_them_are_shown_and_the_rest_is_said() -> None:
    found, said = searched(partitions([0], 400, 1 << 20), 400, 400)
    assert found[0] == (0, 399)
    assert found == sorted(found, reverse=True)
    (looked_at,) = re.findall(r"only (\d+) of the last 400 offsets were looked at", said)
    assert len(found) <= int(looked_at) < 400


def test_the_newest_of_many_partitions_are_found_by_a_few_of_each() -> None:
    found, said = searched(partitions([at * 10 for at in range(30)], 100), 100, 50, 30)
    assert len(found) == 50
    assert found[0] == (29, 99)
    assert "only" not in said


def test_a_topic_of_many_partitions_is_asked_for_its_newest_with_few_requests() -> None:
    answers = {
        "MetadataRequest": metadata("t", partitions=900),
        "ListOffsetsRequest": offsets(0, 2),
        "FetchRequest": partitions(range(0, 9_000, 10), 2),
    }
    client = FakeClient(answers)
    with visitor(client) as browser:
        log_in(browser)
        given, before = {"csrf": token_of(browser), "from": "end", "rows": "50"}, len(client.sent)
        text = browser.post("/topics/t/records", data=given).text
    asked = [type(one).__name__ for one in client.sent[before:]]
    assert asked == ["MetadataRequest", *["ListOffsetsRequest"] * 2, *["FetchRequest"] * 2]
    assert "1800 records looked at" in text.replace(",", "").replace("\u202f", "")
    found = [int(one) for one in re.findall(r'<tr>\s*<td class="number">(\d+)</td>', text)]
    assert found == [one for one in range(899, 874, -1) for _ in range(2)]


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=600), st.integers(1, ROWS_MAX)
)
def test_where_the_newest_are_looked_for_is_bounded_and_reached(spans: list[tuple[int, int]], rows: int) -> None:
    begins = {number: first for number, (first, _) in enumerate(spans)}
    ends = {number: first + length for number, (first, length) in enumerate(spans)}
    at = begin(Span(begins, ends), rows)
    filled = [one for one in ends if ends[one] > begins[one]]
    assert all(begins[one] <= at[one] < ends[one] for one in filled)
    assert between(at, ends) <= max(OFFSETS_MAX, len(filled))
    for _ in range(STEPS_MAX - STEPS_WHOLE):
        at = nearer(at, ends)
    assert all(ends[one] - at[one] <= 1 for one in ends)
    assert all(at[one] < ends[one] for one in filled)


def test_what_a_page_shows_of_the_newest_is_bounded() -> None:
    decoder = decoder_of("text")
    lines = [line_of(0, Record(at, at, None, b"x" * (64 << 10)), "", -1, decoder, decoder) for at in range(300)]
    shown = newest(lines, ROWS_MAX)
    assert [one.offset for one in shown] == list(range(299, 299 - len(shown), -1))
    assert sum(one.characters for one in shown) <= CHARACTERS_MAX < sum(one.characters for one in lines)
