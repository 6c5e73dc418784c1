"""How much work it is to open a key with its password, which the author of the key decides. No I/O."""

from __future__ import annotations

import base64
import re

from common.settings import SettingError

ROUNDS_MAX = 1_000_000
"""Of PBKDF2: some 0.4 s of a thread. OpenSSL writes 2,048; advice for passwords goes up to 600,000."""
ENCRYPTED = "ENCRYPTED PRIVATE KEY"

_INTEGER, _OCTETS, _NAME, _SEQUENCE = 0x02, 0x04, 0x06, 0x30
_PBES2, _PBKDF2 = (bytes.fromhex(text) for text in ("2a864886f70d01050d", "2a864886f70d01050c"))
_PEM = re.compile(rf"-----BEGIN {ENCRYPTED}-----([A-Za-z0-9+/=\s]*)-----END {ENCRYPTED}-----", re.ASCII)


def checked_key(pem: str) -> str:
    """The same key, written as OpenSSL reads it in no other way. Raises SettingError, before anything is derived from
    the password, for an encrypted key of another form and for too many rounds.

    Keys that say `Proc-Type` have none: their password is hashed once."""
    if not pem.startswith(f"-----BEGIN {ENCRYPTED}-----"):
        return pem
    match = _PEM.fullmatch(pem)
    try:
        der = base64.b64decode("".join(match[1].split()) if match is not None else "", validate=True)
        rounds = _rounds(der)
    except ValueError:
        raise SettingError("this encrypted key is not of a known form; make it one by `openssl pkcs8 -topk8`") from None
    if not 0 < rounds <= ROUNDS_MAX:
        raise SettingError(f"the key's password would be hashed more than {ROUNDS_MAX} times, which is too much work")
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {ENCRYPTED}-----", *lines, f"-----END {ENCRYPTED}-----"])


def _rounds(der: bytes) -> int:
    """Of an EncryptedPrivateKeyInfo (RFC 5958) with PBES2 and PBKDF2 (RFC 8018). Raises ValueError for any other."""
    ((whole, info),) = _elements(der)
    (scheme, algorithm), (encrypted, _) = _elements(info)
    (scheme_name, name), (options, kdf_and_cipher) = _elements(algorithm)
    (kdf, kdf_algorithm), (cipher, _) = _elements(kdf_and_cipher)
    (kdf_name, function), (kdf_options, given) = _elements(kdf_algorithm)
    (salt, _), (count, rounds), *_ = _elements(given)
    if {whole, scheme, options, kdf, cipher, kdf_options} != {_SEQUENCE} or (encrypted, salt) != (_OCTETS, _OCTETS):
        raise ValueError
    if (scheme_name, kdf_name, count) != (_NAME, _NAME, _INTEGER) or (name, function) != (_PBES2, _PBKDF2):
        raise ValueError
    return int.from_bytes(rounds, signed=True)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The tags and contents of what follows each other. Raises ValueError."""
    found, at = list[tuple[int, bytes]](), 0
    while at < len(der):
        if at + 2 > len(der):
            raise ValueError
        head, length = at + 2, der[at + 1]
        if length >= 0x80:  # as many bytes of a length follow; 0x80 alone: its end is not said here
            head, length = head + length - 0x80, int.from_bytes(der[head : head + length - 0x80])
        if der[at + 1] == 0x80 or head + length > len(der):
            raise ValueError
        found.append((der[at], der[head : head + length]))
        at = head + length
    return found
