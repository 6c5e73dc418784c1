"""Options: what is understood, and that a mistake is told before anything is read."""

from __future__ import annotations

import pytest

from spark_offload.options import EARLIEST, LATEST, NAMES, OptionError, parse_options

BASE = {"tier": "file:///srv/tier", "topic": "flights"}


def test_the_defaults() -> None:
    options = parse_options(BASE)
    assert options.topics == ("flights",)
    assert (options.starting.default, options.ending.default) == (EARLIEST, LATEST)
    assert (options.include_headers, options.read_committed, options.pushdown) == (False, False, False)
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None
    assert all(options.wants_partition(number) for number in (0, 7, 2**31 - 1))


def test_the_case_of_names_and_words_does_not_matter() -> None:
    given = {"TIER": "file:///t", "Topic": "a, b,a", "includeheaders": "True", "ISOLATION": "READ_COMMITTED"}
    options = parse_options(given | {"startingoffsets": "Latest", "endingOffsets": "EARLIEST"})
    assert options.topics == ("a", "b")
    assert options.include_headers
    assert options.read_committed
    assert (options.starting.default, options.ending.default) == (LATEST, EARLIEST)


def test_partitions_and_offsets_of_partitions() -> None:
    chosen = {"partitions": "0, 2,5-7", "startingOffsets": '{"flights": {"0": 23, "2": -2, "5": -1}}'}
    options = parse_options(BASE | chosen)
    assert [number for number in range(10) if options.wants_partition(number)] == [0, 2, 5, 6, 7]
    assert [options.starting.of("flights", number) for number in (0, 2, 5, 6)] == [23, EARLIEST, LATEST, EARLIEST]
    assert parse_options(BASE | {"startingTimestamp": "1700000000000"}).starting.timestamp == 1_700_000_000_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tier": ""}, "tier is missing"),
        ({"topic": ""}, "topic and topicPattern"),
        ({"topicPattern": "f.*"}, "topic and topicPattern"),
        ({"topic": "", "topicPattern": "("}, "no regular expression"),
        ({"topics": "flights"}, "unknown option 'topics'; the options are tier, topic,"),
        ({"partitions": "1-"}, "partitions is a list like"),
        ({"partitions": "3-1"}, "partitions is a list like"),
        ({"partitions": "-1"}, "partitions is a list like"),
        ({"startingOffsets": "first"}, "startingOffsets is \"earliest\""),
        ({"startingOffsets": "[1]"}, "startingOffsets is \"earliest\""),
        ({"startingOffsets": '{"flights": {"0": -3}}'}, "startingOffsets is \"earliest\""),
        ({"endingOffsets": '{"flights": {"x": 3}}'}, "endingOffsets is \"earliest\""),
        ({"endingOffsets": '{"flights": {"0": true}}'}, "endingOffsets is \"earliest\""),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingOffsets and startingTimestamp"),
        ({"endingTimestamp": "yesterday"}, "endingTimestamp is a whole number"),
        ({"includeHeaders": "yes"}, "includeHeaders is true or false"),
        ({"isolation": "serializable"}, "isolation is read_uncommitted or read_committed"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is from 1 to"),
        ({"splitBytes": "1"}, "splitBytes is from 1024 to"),
        ({"topicId": "12"}, "32 hex digits"),
        ({"topic": "a,b", "topicId": "0" * 32}, "single topic"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(change: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words.replace("(", r"\(").replace("{", r"\{")):
        parse_options(BASE | change)


def test_the_page_of_the_documentation_names_every_option() -> None:
    from pathlib import Path  # noqa: PLC0415

    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []
