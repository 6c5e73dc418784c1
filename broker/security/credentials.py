"""Verifiers as one listener's clients may use them: operators' users on one kind, a tenant's keys on the other.

Whoever is not there gets a made-up verifier that nothing fits: its salt depends on the name and on the cluster's secret
alone, so that it is the same each time and on each broker, and no answer tells users from strangers.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from broker.security.scram import HASHES
from kraft.image.credentials import ScramCredential
from kraft.image.metadata import MetadataImage
from kraft.records import ScramMechanism

SALT_BYTES = 24
KEY_ITERATIONS = 4_096
PASSWORD_ITERATIONS = 8_192
"""As the command makes them for API keys and for passwords."""


class Credentials:
    """`tenant` None: an operators' listener. `secret` is the cluster's."""

    def __init__(self, image: Callable[[], MetadataImage], secret: bytes, tenant: str | None) -> None:
        self._image = image
        self._secret = secret
        self._tenant = tenant

    def scram(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        credential = self._found(user).get(mechanism)
        return credential if credential is not None else self._made_up(user, mechanism)

    def any_of(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        found = self._found(user)
        mechanism = min(found, default=ScramMechanism.SHA_256)
        credential = found.get(mechanism)
        return mechanism, credential if credential is not None else self._made_up(user, mechanism)

    def holds(self, user: str) -> bool:
        """Whether that user may be here, as the newest image has it."""
        return bool(self._found(user))

    def _found(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        image = self._image()
        key = image.keys.get(user)
        if self._tenant is None:
            allowed = key is None
        else:
            tenant = image.tenants.get(self._tenant)
            allowed = key is not None and key.tenant == self._tenant and tenant is not None and tenant.may_log_in
        return dict(image.scram.get(user, {})) if allowed else {}

    def _made_up(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        def drawn(purpose: bytes) -> bytes:
            return hmac.digest(self._secret, b"no such user\0" + purpose + b"\0" + user.encode(), "sha512")

        size = 32 if HASHES[mechanism] == "sha256" else 64
        iterations = PASSWORD_ITERATIONS if self._tenant is None else KEY_ITERATIONS
        salt = drawn(b"salt%d" % mechanism)[:SALT_BYTES]
        return ScramCredential(salt, drawn(b"stored")[:size], drawn(b"server")[:size], iterations)
