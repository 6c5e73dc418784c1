"""SCRAM verifiers for unknown users, which match no password and which clients cannot distinguish from real ones.

Salt and iterations are derived from the name, the cluster's secret and the forms of the existing verifiers, so they are
the same each time and on each broker. A form is drawn as often as users have it, up to a factor of 2: its weight is the
number of users rounded down to a power of two, so that a decoy rarely changes when users are added or removed. A
changed decoy has another salt, like a user with a new password. The draw is weighted rendezvous hashing (Schindelhauer,
Schomaker: Weighted distributed hash tables, 2005), which moves as few names as possible.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from typing import NamedTuple

from broker.security.scram import HASHES
from kraft.image.credentials import ScramCredential, ScramCredentials
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import ScramMechanism

SALT_BYTES = 24
KEY_ITERATIONS = 4_096
PASSWORD_ITERATIONS = 8_192
"""As in the verifiers that `tidelog` creates for API keys and passwords."""
FORMS_MAX = 16
"""Decoys have one of the owner's most frequent forms, at most this many."""

_TEXT_BITS = 130
_TEXT_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT_SALT = re.compile(rb"[0-9a-z]{20,26}")


class Form(NamedTuple):
    """The properties of a verifier that a client sees, except the salt's bytes. `salt_bytes` 0: a salt of Apache
    Kafka's tools, a number of 130 bits to the base 36."""

    iterations: int
    salt_bytes: int

    @classmethod
    def of(cls, credential: ScramCredential) -> Form:
        is_text = _TEXT_SALT.fullmatch(credential.salt) is not None
        return cls(credential.iterations, 0 if is_text else len(credential.salt))


Forms = tuple[tuple[ScramMechanism, Form], ...]
"""The forms of one user's verifiers, by mechanism; never empty."""


class DecoyVerifiers:
    """Makes decoys, and counts the forms of users on operators' listeners (owner None) and of each tenant's keys."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._counts: dict[str | None, dict[Forms, int]] = {}
        # cache of owners that were used since their counts changed
        self._weights: dict[str | None, list[tuple[Forms, int]]] = {}

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a change. The first delta begins at the empty image, each later one at the image before."""
        access, before = delta.access, delta.base
        for name in dict.fromkeys((*access.scram.changed, *access.keys.changed)):
            self._count(before, name, -1)
            self._count(image, name, +1)

    def _count(self, image: MetadataImage, name: str, change: int) -> None:
        credentials = image.scram.get(name)
        if not credentials:
            return
        key = image.keys.get(name)
        owner = None if key is None else key.tenant
        counts, forms = self._counts.setdefault(owner, {}), forms_of(credentials)
        counts[forms] = counts.get(forms, 0) + change
        if not counts[forms]:
            del counts[forms]
        if not counts:
            del self._counts[owner]
        self._weights.pop(owner, None)

    def forms(self, user: str, owner: str | None) -> Forms:
        """The forms for an unknown user of the owner."""
        weights = self._weights.get(owner)
        if weights is None:
            weights = self._weighed(owner)
            if owner in self._counts:  # clients may send unknown owners, which must not take memory
                self._weights[owner] = weights
        return min(weights, key=lambda entry: (self._distance(user, *entry), entry))[0]

    def _weighed(self, owner: str | None) -> list[tuple[Forms, int]]:
        counts = self._counts.get(owner)
        if not counts:
            form = Form(PASSWORD_ITERATIONS if owner is None else KEY_ITERATIONS, SALT_BYTES)
            return [(tuple((mechanism, form) for mechanism in ScramMechanism), 1)]
        entries = [(forms, 1 << (count.bit_length() - 1)) for forms, count in counts.items()]
        return sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:FORMS_MAX]

    def _distance(self, user: str, forms: Forms, weight: int) -> float:
        about = repr([(int(mechanism), *form) for mechanism, form in forms]).encode()
        drawn = int.from_bytes(self._drawn(user, b"form", about)[:8], "big")
        return -math.log((drawn + 1) / 2**64) / weight

    def verifier(self, user: str, mechanism: ScramMechanism, form: Form) -> ScramCredential:
        """A verifier of that form, which no password matches."""
        about = b"%d %d %d" % (mechanism, form.iterations, form.salt_bytes)
        size = hashlib.new(HASHES[mechanism]).digest_size
        stored, server = self._drawn(user, b"stored", about)[:size], self._drawn(user, b"server", about)[:size]
        seed = self._drawn(user, b"salt", about)
        salt = hashlib.shake_256(seed).digest(form.salt_bytes) if form.salt_bytes else _text_salt(seed)
        return ScramCredential(salt, stored, server, form.iterations)

    def _drawn(self, user: str, purpose: bytes, about: bytes) -> bytes:
        return hmac.digest(self._secret, b"\0".join((b"no such user", purpose, about, user.encode())), "sha512")


def forms_of(credentials: ScramCredentials) -> Forms:
    return tuple(sorted((mechanism, Form.of(credential)) for mechanism, credential in credentials.items()))


def _text_salt(seed: bytes) -> bytes:
    number, digits = int.from_bytes(seed, "big") % (1 << _TEXT_BITS), ""
    while number:
        number, digit = divmod(number, len(_TEXT_DIGITS))
        digits = _TEXT_DIGITS[digit] + digits
    return digits.encode()
