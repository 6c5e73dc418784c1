"""What administration says of failures, in the words of the protocol."""

from __future__ import annotations

import pytest
from kafka import errors

from common.errors import error_name
from common.settings import SettingError
from tidelog.admin.admin_client import error_text, outcome_text, topic_error_text
from tidelog.configuration.settings_check import check_settings


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (type(errors.for_code(68)()).__name__, "NON_EMPTY_GROUP: The group still has members."),
        (str(errors.for_code(68)(None)), "NON_EMPTY_GROUP: The group still has members."),
        (type(errors.for_code(69)()).__name__, "GROUP_ID_NOT_FOUND: The group id does not exist."),
        (str(errors.for_code(40)("retention.ms: x\nis no number")), "INVALID_CONFIG: retention.ms: x\nis no number"),
        (str(errors.for_code(-1)("oh")), "UNKNOWN_SERVER_ERROR: oh"),
        (
            str(errors.for_code(15)(None)),
            "COORDINATOR_NOT_AVAILABLE: No broker coordinates it now, or its coordinator cannot write.",
        ),
        (str(errors.for_code(9_999)("new")), "error 9999: new"),
        ("something else", "something else"),
    ],
)
def test_the_clients_words_become_the_protocols(outcome: str, shown: str) -> None:
    assert outcome_text(outcome) == shown


def test_rows_are_told_by_the_name_of_their_code_and_a_sentence() -> None:
    assert error_text({"error_code": 0, "error_message": None}) is None
    bare = {"error_code": 3, "error_message": None}
    assert error_text(bare) == "UNKNOWN_TOPIC_OR_PARTITION: The topic or partition does not exist."
    assert topic_error_text("words", bare) == "there is no topic words"
    assert topic_error_text("words", {"error_code": 40, "error_message": "why"}) == "words: INVALID_CONFIG: why"
    assert error_text({"error_code": 12_345, "error_message": None}) == "error 12345"
    assert error_text({"error_code": 40, "error_message": "why"}) == "INVALID_CONFIG: why"
    assert error_name(12_345) == "error 12345"


def test_what_is_being_copied_must_not_be_old_enough_to_be_swept() -> None:
    slow = {
        "tidelog.tier.uri": "file:///tmp/tier",
        "tidelog.tier.copy.bytes.per.second": "1000000",
        "log.segment.bytes": "1000000000",
        "tidelog.tier.copy.threads": "4",
    }
    assert check_settings(slow | {"tidelog.tier.sweep.age.ms": "4000000"})
    with pytest.raises(SettingError, match=r"tidelog\.tier\.sweep\.age\.ms: 3999999 .* at least 4000000"):
        check_settings(slow | {"tidelog.tier.sweep.age.ms": "3999999"})
    unlimited = slow | {"tidelog.tier.copy.bytes.per.second": "0", "tidelog.tier.sweep.age.ms": "1000"}
    assert check_settings(unlimited)
    assert check_settings(unlimited | {"tidelog.tier.uri": ""})
