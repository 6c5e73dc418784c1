"""DescribeUserScramCredentials 0.

Behaviour: descriptions come from this broker's image and never include a verifier; API keys are not users here.
"""

from __future__ import annotations

from collections import Counter

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from common.errors import ErrorCode, error_message
from kraft.image.metadata import MetadataImage
from wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


class ScramHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def describe_user_scram_credentials(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        image = self._forwarder.image
        asked = Counter(user.name for user in request.users or ())
        names = list(asked) if asked else sorted(name for name in image.scram if name not in image.keys)
        return DescribeUserScramCredentialsResponse(
            error_code=0,
            error_message=None,
            results=[_described(image, name, twice=asked[name] > 1) for name in names],
        )


def _described(image: MetadataImage, name: str, *, twice: bool) -> _Described:
    code, message = ErrorCode.NONE, None
    credentials = {} if name in image.keys else image.scram.get(name, {})
    if twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        message = error_message(text)
    elif not credentials:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = error_message(f"Attempt to describe a user credential that does not exist: {name}")
    infos = [] if code else sorted((int(mechanism), found.iterations) for mechanism, found in credentials.items())
    return _Described(
        user=name,
        error_code=int(code),
        error_message=message,
        credential_infos=[_Described.CredentialInfo(mechanism=m, iterations=i) for m, i in infos],
    )
