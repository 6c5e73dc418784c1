"""OAUTHBEARER (RFC 7628) with JSON web tokens whose issuer's keys come from a JWKS file or address (RFC 7517, 7519).

A token is checked by signature, time, audience, issuer and subject, with asymmetric algorithms alone: no key that
verifies can sign. As with Apache Kafka a token that is refused is answered with a status first, and the exchange fails
with the client's next message.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

from broker.security.exchange import Authenticated, AuthenticationFailed, Step
from common.node_settings.security import SecuritySettings
from common.ports import Clock
from common.web_document import read_document
from kraft.image.tenants import tenant_of

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logging.getLogger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
TOKEN_BYTES_MAX = 64 << 10
DOCUMENT_BYTES_MAX = 1 << 20
READ_TIMEOUT_S = 5.0
READ_AGAIN_S = 10.0  # minimal interval between two reads, whatever key ids tokens have
REFUSED = b'{"status":"invalid_token"}'
_SEPARATOR = b"\x01"
_FIRST = re.compile(rb"(?:n|y),(?:a=([^,]*))?,\x01(.*)\x01\x01", re.DOTALL)
_SUBJECT = re.compile(r"[^\x00-\x1f]{1,255}")


class KeySet:
    """The issuer's keys, by id. `key` blocks while it reads them: call it off the loop."""

    def __init__(self, config: SecuritySettings, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._keys: dict[str | None, PyJWK] = {}
        self._read_at = self._tried_at = float("-inf")

    def key(self, key_id: str | None) -> PyJWK:
        """Raises AuthenticationFailed if there is no such key. A token without an id matches only if there is a single
        key."""
        now = self._clock.monotonic()
        stale = now - self._read_at >= self._config.jwks_endpoint_refresh_ms / 1000
        if (stale or self._find(key_id) is None) and now - self._tried_at >= READ_AGAIN_S:
            self._tried_at = now
            self._read(now)
        found = self._find(key_id)
        if found is None:
            raise AuthenticationFailed("unknown signing key")
        return found

    def _find(self, key_id: str | None) -> PyJWK | None:
        keys = self._keys
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(key_id)

    def _read(self, now: float) -> None:
        from jwt import PyJWKSet  # noqa: PLC0415
        from jwt.exceptions import PyJWTError  # noqa: PLC0415

        try:
            document = read_document(self._config.jwks_endpoint_url, DOCUMENT_BYTES_MAX, READ_TIMEOUT_S)
            keys = PyJWKSet.from_dict(json.loads(document)).keys
        except (OSError, ValueError, PyJWTError, TypeError, AttributeError) as error:
            logger.warning("token keys cannot be read", extra={"reason": f"{type(error).__name__}: {error}"})
            return
        self._keys = {key.key_id: key for key in keys if key.algorithm_name in ALGORITHMS}
        self._read_at = now


class OauthExchange:
    """One message with a token; one more if the token is rejected."""

    def __init__(self, config: SecuritySettings, keys: KeySet) -> None:
        self._config = config
        self._keys = keys
        self._refused: AuthenticationFailed | None = None

    def step(self, data: bytes) -> Step:
        """Check the token, which may have to read keys first. Raises AuthenticationFailed."""
        if self._refused is not None:
            raise self._refused
        match = _FIRST.fullmatch(data)
        if match is None or len(data) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed("malformed message")
        pairs = [pair.partition(b"=") for pair in match[2].split(_SEPARATOR)]
        values = [value for name, _, value in pairs if name == b"auth"]
        scheme, _, token = values[0].strip().partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or not token:
            raise AuthenticationFailed("malformed message")
        authorization = match[1]
        return lambda: self._check(token.strip(), authorization)

    @property
    def is_refused(self) -> bool:
        return self._refused is not None

    def refuse(self, failure: AuthenticationFailed) -> bytes:
        """The status for a rejected token; the exchange fails with the next message."""
        self._refused = failure
        return REFUSED

    def _check(self, token: bytes, authorization: bytes | None) -> Authenticated:
        import jwt  # noqa: PLC0415

        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise AuthenticationFailed("algorithm not allowed")
            key = self._keys.key(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=list(config.expected_audience) or None,
                issuer=config.expected_issuer or None,
                leeway=config.clock_skew_seconds,
                options={
                    "require": ["exp"],
                    "verify_aud": bool(config.expected_audience),
                    "verify_sub": False,
                },
            )
        except jwt.exceptions.ExpiredSignatureError as error:
            raise AuthenticationFailed("expired token") from error
        except (jwt.exceptions.PyJWTError, TypeError, ValueError) as error:
            raise AuthenticationFailed("invalid token") from error
        subject = claims.get(config.sub_claim_name)
        if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject) or tenant_of(subject) is not None:
            raise AuthenticationFailed("no subject")
        if authorization and authorization.decode("utf-8", "replace") != subject:
            raise AuthenticationFailed("another authorization id")
        return Authenticated(subject, b"", int(claims["exp"]) * 1000)
