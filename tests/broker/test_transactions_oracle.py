"""Every request in every state of a transaction, against Apache Kafka's answers (`transaction_oracle/generate.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.transaction_oracle.asking import SETS, read
from tests.broker.transaction_oracle.differences import (
    FENCED_AT_LAST,
    KAFKAS,
    OURS,
    REASONS,
    ask_ours,
    expected,
    markdown,
)
from tests.broker.transaction_oracle.questions import QUESTIONS
from tests.broker.transaction_oracle.states import STATES, is_last
from tests.broker.transaction_oracle.views import VIEWS

pytestmark = pytest.mark.virtual_time


async def test_answers_are_apache_kafkas(tmp_path: Path) -> None:
    found, wanted = await ask_ours(tmp_path), expected()
    wrong = [
        f"{key} {state}:\n  ours     {answer}\n  expected {wanted.get(key, {}).get(state)}"
        for key, by_state in found.items()
        for state, answer in by_state.items()
        if answer != wanted.get(key, {}).get(state)
    ]
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:20])
    unasked = {state for key, by_state in wanted.items() for state in by_state if state not in found.get(key, {})}
    assert unasked <= set(FENCED_AT_LAST), "there epochs below the first are not asked about"


def test_differences_are_few_and_have_a_reason() -> None:
    ours, kafkas = read(OURS), read(KAFKAS)
    cells = [(key, state) for key, by_state in ours.items() for state in by_state]
    assert all(sum(reason.covers(*cell) for reason in REASONS) == 1 for cell in cells)
    assert len(cells) < sum(map(len, kafkas.values())) // 30
    assert all(kafkas.get(key, {}).get(state) != ours[key][state] for key, state in cells)


def test_the_table_in_the_documentation_is_that_of_the_answers() -> None:
    page = Path(__file__).parents[2] / "docs" / "transactions.md"
    assert markdown() in page.read_text(), "python -m tests.broker.transaction_oracle.differences --table prints it"


def test_every_question_is_answered_in_every_state() -> None:
    """And in one way or another: a table of one answer would tell nothing."""
    kafkas = read(KAFKAS)
    for question in QUESTIONS:
        asked = {state for (label, _), by_state in kafkas.items() if label == question.label for state in by_state}
        assert asked == {state for state in STATES if question.at_last or not is_last(state)}, question.label
    assert all(set(kafkas[view, ""]) == set(STATES) for view in VIEWS)
    codes = {answer.split(",")[0].split(";")[0] for by_state in kafkas.values() for answer in by_state.values()}
    assert codes >= {
        "NONE", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE",
        "NOT_ENOUGH_REPLICAS", "OUT_OF_ORDER_SEQUENCE_NUMBER", "PRODUCER_FENCED", "TRANSACTION_ABORTABLE",
        "TRANSACTION_COORDINATOR_FENCED",
    }  # fmt: skip
    assert set(SETS["all"]) == set(STATES)
