"""Why a question to the cluster has no answer, in words that a page shows in place."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError, UnsupportedVersionError

from common.errors import ProtocolError
from common.settings import SettingError
from tidelog.admin.admin_client import outcome_text
from tidelog.admin.offset_reset import BadReset
from tidelog.admin.replica_moves import Refused

GONE = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError)
EXPECTED = (KafkaError, Refused, SettingError, BadReset, ProtocolError, OSError, ValueError)
"""What a question may end with; anything else is a fault of the console and is logged as one."""


class Trouble(Exception):
    """The text says what is wrong, and holds no secret. `is_passing`: a later attempt may succeed."""

    def __init__(self, text: str, *, is_passing: bool = False) -> None:
        super().__init__(text)
        self.is_passing = is_passing


def trouble_of(error: BaseException) -> Trouble:
    """For an error in `EXPECTED`."""
    if isinstance(error, GONE) or (isinstance(error, OSError) and not isinstance(error, UnsupportedVersionError)):
        return Trouble(f"no broker answers: {_words(error)}", is_passing=True)
    if isinstance(error, KafkaError):
        text = outcome_text(str(error))
        return Trouble(refusal(text), is_passing=bool(getattr(error, "retriable", False)))
    return Trouble(refusal(_words(error)))


def refusal(text: str) -> str:
    """What a broker says, beginning with an error's name; a missing right is said to be one."""
    name = text.partition(":")[0]
    return f"you lack the right to this ({text})" if name.endswith("AUTHORIZATION_FAILED") else text


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
