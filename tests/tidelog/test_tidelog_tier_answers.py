"""What brokers say of the tier, to users who may not ask for it too."""

from __future__ import annotations

from typing import Any, cast

import pytest
import typer
from kafka.errors import KafkaError, for_code

from common.errors import ErrorCode
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import Place
from tidelog.tier.access import answers_of, ask_brokers, blocked_bytes
from tiering.shard.description import BrokerTier, LedStatus, encode
from wire.messages import DescribeTierResponse

LED = LedStatus(
    topic="t", topic_id="00" * 16, partition=1, leader_epoch=1, log_start_offset=0, local_log_start_offset=0,
    high_watermark=10, log_end_offset=10, claimed=True, copy_lag_bytes=7,
)  # fmt: skip
REPORT = encode(BrokerTier(broker_id=0, cluster_id="c", partitions=[LED]))


def response(code: ErrorCode, message: str | None = None, description: bytes = b"") -> DescribeTierResponse:
    return DescribeTierResponse(error_code=code, error_message=message, description=description)


DENIED = response(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
ANSWERED = response(ErrorCode.NONE, None, REPORT)


class Brokers:
    """A client; broker n gives the nth of `answers`."""

    def __init__(self, *answers: DescribeTierResponse | KafkaError) -> None:
        self._answers = answers

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": one, "is_fenced": False} for one in range(len(self._answers))]}

    def send(self, _: Any, broker: int) -> DescribeTierResponse:
        answer = self._answers[broker]
        if isinstance(answer, KafkaError):
            raise answer
        return answer


def client(*answers: DescribeTierResponse | KafkaError) -> AdminClient:
    return cast("AdminClient", Brokers(*answers))


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (DENIED, "CLUSTER_AUTHORIZATION_FAILED: Cluster authorization failed."),
        (for_code(35)("no such API"), "UNSUPPORTED_VERSION: no such API"),  # as the library says of a tenant's listener
        (response(ErrorCode.NONE, None, b""), "Input data was truncated"),
    ],
)
def test_a_refusal_is_told_by_its_reason(
    refusal: DescribeTierResponse | KafkaError, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = client(refusal, refusal)
    assert answers_of(nobody).silent == [0, 1]
    said = f"no broker reports its tier: {reason}"
    with pytest.raises(Refused) as refused:
        blocked_bytes(nobody)
    assert str(refused.value) == said
    with pytest.raises(typer.Exit):
        ask_brokers(nobody)
    assert capsys.readouterr().err == f"tidelog: {said}\n"


def test_those_that_answer_are_heard_when_others_refuse() -> None:
    some = client(DENIED, ANSWERED)
    assert (answers_of(some).silent, len(answers_of(some).brokers)) == ([0], 1)
    assert blocked_bytes(some) == {Place("t", 1): 7}
