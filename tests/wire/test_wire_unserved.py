"""What is not served is told, all of it: each API of Apache Kafka is either here or in README's table."""

from __future__ import annotations

from pathlib import Path

from wire.apis import APIS
from wire.refusals import REFUSED_APIS
from wire.unserved import UNSERVED, table

README = Path(__file__).parents[2] / "README.md"
GONE = {4, 5, 6, 7}  # of ZooKeeper's time, not in Apache Kafka 4
KEYS = set(range(93)) - GONE  # of Apache Kafka 4.1
OWN_KEYS = 1_000  # Tidelog's own are above


def test_every_api_of_apache_kafka_is_served_or_told() -> None:
    served = {key for key in APIS if key < OWN_KEYS}
    told = {key for one in UNSERVED for key in one.apis.values()}
    assert served & told == set()
    assert served | told == KEYS


def test_every_refused_schema_is_told_by_its_name() -> None:
    assert set(REFUSED_APIS) <= {name for one in UNSERVED for name in one.apis}


def test_readme_has_the_table() -> None:
    """`python -c 'from wire.unserved import table; print(table())'` prints it."""
    text = README.read_text()
    begin, end = "<!-- what is not served -->\n\n", "\n\n<!-- end -->"
    assert begin in text
    assert text.partition(begin)[2].partition(end)[0] == table()
