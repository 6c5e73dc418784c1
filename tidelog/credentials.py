"""Generates secrets in the process that shows them, and their verifiers, which alone leave it (RFC 5802)."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import NamedTuple

SECRET_CHARACTERS = 64
SALT_BYTES = 24
KEY_ITERATIONS = 4_096  # enough for a random secret, which cannot be guessed
PASSWORD_ITERATIONS = 8_192
MECHANISMS = {1: "sha256", 2: "sha512"}
MECHANISM_NAMES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
PRIVATE = 0o600


class Salted(NamedTuple):
    """A password with one salt, in the form of AlterUserScramCredentials."""

    mechanism: int
    iterations: int
    salt: bytes
    password: bytes


class Verifier(NamedTuple):
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def new_secret() -> str:
    return secrets.token_urlsafe(SECRET_CHARACTERS * 3 // 4)


def salted(password: str, mechanism: int, iterations: int = PASSWORD_ITERATIONS) -> Salted:
    salt = secrets.token_bytes(SALT_BYTES)
    hashed = hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)
    return Salted(mechanism, iterations, salt, hashed)


def verifiers(secret: str) -> list[Verifier]:
    """The verifiers of a key's secret, one for each mechanism."""
    found = []
    for mechanism, name in MECHANISMS.items():
        _, iterations, salt, hashed = salted(secret, mechanism, KEY_ITERATIONS)
        stored = hashlib.new(name, hmac.digest(hashed, b"Client Key", name)).digest()
        found.append(Verifier(mechanism, iterations, salt, stored, hmac.digest(hashed, b"Server Key", name)))
    return found


def write_private(path: Path, text: str) -> None:
    """Create a file that only its owner may read. Raises OSError, for example FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
