"""Delegation tokens are refused with the codes and times that Apache Kafka gives without a secret key for them."""

from __future__ import annotations

import pytest

from broker.handlers.delegation_tokens import DelegationTokens
from broker.requests.context import RequestContext
from broker.security.session import ANONYMOUS
from common.errors import ErrorCode
from tests.broker.broker_world import context, reply_over_the_wire, versions_of
from wire.messages import ExpireDelegationTokenRequest, RenewDelegationTokenRequest

REFUSALS = [
    (ANONYMOUS, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1),
    ("User:anna", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0),
]


def asked_by(principal: str, api: str, version: int) -> RequestContext:
    asked = context(api, version)
    asked.session.principal = principal
    return asked


@pytest.mark.parametrize(("principal", "code", "expiry"), REFUSALS)
@pytest.mark.parametrize("version", versions_of("RenewDelegationToken"))
def test_a_token_is_not_renewed(principal: str, code: ErrorCode, expiry: int, version: int) -> None:
    asked = asked_by(principal, "RenewDelegationToken", version)
    request = RenewDelegationTokenRequest(hmac=b"none", renew_period_ms=-1)
    answer = reply_over_the_wire(asked, DelegationTokens().renew(asked, request))
    assert (answer.error_code, answer.expiry_timestamp_ms) == (code, expiry)


@pytest.mark.parametrize(("principal", "code", "expiry"), REFUSALS)
@pytest.mark.parametrize("version", versions_of("ExpireDelegationToken"))
def test_a_token_does_not_expire(principal: str, code: ErrorCode, expiry: int, version: int) -> None:
    asked = asked_by(principal, "ExpireDelegationToken", version)
    request = ExpireDelegationTokenRequest(hmac=b"none", expiry_time_period_ms=-1)
    answer = reply_over_the_wire(asked, DelegationTokens().expire(asked, request))
    assert (answer.error_code, answer.expiry_timestamp_ms) == (code, expiry)
