"""Signatures beside files, which openssl verifies: docs/releases.md.

The key is the releaser's own: an ECDSA key on P-256 in a PEM file. Signatures are ASN.1 over SHA-256.
"""

from __future__ import annotations

import getpass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ALGORITHM = ec.ECDSA(hashes.SHA256())


class BadKey(Exception):
    """A file is no key of the kind that is needed; the text says so."""


def signing_key(path: Path, password: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    """Raises BadKey, and TypeError for an encrypted key without a password."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password)
    except ValueError as error:
        raise BadKey(f"{path} is no private key in PEM: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadKey(f"{path} is no ECDSA key on P-256")
    return key


def sign(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """`path` with `.sig`, and the signature in it."""
    beside = path.with_name(path.name + ".sig")
    beside.write_bytes(key.sign(path.read_bytes(), ALGORITHM))
    return beside


def is_signed(path: Path, key: ec.EllipticCurvePublicKey) -> bool:
    try:
        key.verify(path.with_name(path.name + ".sig").read_bytes(), path.read_bytes(), ALGORITHM)
    except InvalidSignature:
        return False
    return True


def asked_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Of an encrypted file the password is asked for on the terminal, and nowhere else."""
    try:
        return signing_key(path)
    except TypeError:
        return signing_key(path, getpass.getpass(f"password of {path}: ").encode())
