"""Delegation tokens (KIP-48, KIP-373): CreateDelegationToken 1-3, RenewDelegationToken 1-2, ExpireDelegationToken 1-2,
DescribeDelegationToken 1-3. None are issued.

Behaviour is that of Apache Kafka without `delegation.token.secret.key`: who has logged in hears
DELEGATION_TOKEN_AUTH_DISABLED. Who has not may not ask for tokens at all: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Of a
new token, the gate checks the right to its owner before that (`broker/gates/cluster_gates.py`), then its renewers are
checked here.
"""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.security.session import ANONYMOUS
from common.errors import ErrorCode
from wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

NEVER = -1
USER = "User"


class DelegationTokens:
    """One method per API."""

    def create(self, context: RequestContext, request: CreateDelegationTokenRequest) -> CreateDelegationTokenResponse:
        code = _refusal(context)
        if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED and any(
            renewer.principal_type != USER for renewer in request.renewers
        ):
            code = ErrorCode.INVALID_PRINCIPAL_TYPE
        return no_token(context, request, code)

    def renew(self, context: RequestContext, request: RenewDelegationTokenRequest) -> RenewDelegationTokenResponse:
        code = _refusal(context)
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_time_with(code))

    def expire(self, context: RequestContext, request: ExpireDelegationTokenRequest) -> ExpireDelegationTokenResponse:
        code = _refusal(context)
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_time_with(code))

    def describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(error_code=_refusal(context), tokens=[])


def owner_of(context: RequestContext, request: CreateDelegationTokenRequest) -> str:
    """The principal that a new token is for: who asks for it, if the request names none."""
    if not request.owner_principal_name:
        return context.principal
    return f"{request.owner_principal_type or ''}:{request.owner_principal_name}"


def no_token(
    context: RequestContext, request: CreateDelegationTokenRequest, code: ErrorCode
) -> CreateDelegationTokenResponse:
    at = _time_with(code)
    owner_kind, _, owner_name = owner_of(context, request).partition(":")
    kind, _, name = context.principal.partition(":")
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_kind,
        principal_name=owner_name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=at,
        expiry_timestamp_ms=at,
        max_timestamp_ms=at,
        token_id="",
        hmac=b"",
    )


def _time_with(code: ErrorCode) -> int:
    """What Apache Kafka's controller and its broker put in place of a time when they refuse."""
    return 0 if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else NEVER


def _refusal(context: RequestContext) -> ErrorCode:
    if context.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
