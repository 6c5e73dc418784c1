"""SaslHandshake and SaslAuthenticate, which the connection's login answers."""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.security.login import Login
from common.errors import ErrorCode, ProtocolError
from wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse


class SaslHandlers:
    """Handlers for listeners with SASL; on others they raise ILLEGAL_SASL_STATE."""

    @staticmethod
    def handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        login = _login(context)
        response = login.handshake(context.api_version, request.mechanism)
        login.answer_follows()
        return response

    @staticmethod
    async def authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        login = _login(context)
        response = await login.authenticate(request.auth_bytes)
        login.answer_follows()
        return response


def _login(context: RequestContext) -> Login:
    login = context.session.login
    if not isinstance(login, Login):
        raise ProtocolError(ErrorCode.ILLEGAL_SASL_STATE, "this listener has no SASL")
    return login
