"""Each API of Apache Kafka is in the table of APIs, and README names all that are not served."""

from __future__ import annotations

from pathlib import Path

from tests.wire.api_page import PAGE, page
from tests.wire.unserved_table import table
from wire.apis import ApiKey

README = Path(__file__).parents[2] / "README.md"
GONE = {4, 5, 6, 7}  # of ZooKeeper's time, not in Apache Kafka 4
KEYS = set(range(93)) - GONE  # of Apache Kafka 4.2
OWN_KEYS = 1_000  # Tidelog's own are above


def test_every_api_of_apache_kafka_is_in_the_table() -> None:
    assert {int(key) for key in ApiKey if key < OWN_KEYS} == KEYS


def test_readme_has_the_table() -> None:
    """`python -m tests.wire.unserved_table` prints it."""
    text = README.read_text()
    begin, end = "<!-- what is not served -->\n\n", "\n\n<!-- end -->"
    assert begin in text
    assert text.partition(begin)[2].partition(end)[0] == table()


def test_the_page_of_apis_is_that_of_the_tables() -> None:
    assert PAGE.read_text() == page(), "python -m tests.wire.api_page writes it"
