"""Uuids: 16 bytes between rooms, and Kafka's text form of them."""

import base64
import binascii
import random

UUID_BYTES = 16
ZERO_UUID = bytes(UUID_BYTES)
ONE_UUID = bytes(15) + b"\1"  # reserved by Kafka for the metadata topic


def random_uuid(rng: random.Random) -> bytes:
    """A type 4 uuid as 16 bytes; never a reserved one, nor one whose text begins with a dash (as Kafka's)."""
    while True:
        value = bytearray(rng.randbytes(UUID_BYTES))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if not uuid_text(bytes(value)).startswith("-"):
            return bytes(value)


def uuid_text(value: bytes) -> str:
    """Kafka's form: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def parse_uuid(text: str) -> bytes:
    """The inverse of `uuid_text`; ValueError on anything else."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not a uuid: {text!r}") from error
    if len(value) != UUID_BYTES:
        raise ValueError(f"not a uuid: {text!r}")
    return value
