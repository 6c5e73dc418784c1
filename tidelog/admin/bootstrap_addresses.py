"""The addresses at which a client looks for its cluster, as they are written."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address

from common.settings import SettingError

Address = tuple[str, int]
PORT_DIGITS_MAX = 5


def parse_bootstrap(text: str) -> list[Address]:
    """`HOST:PORT,…`. Raises SettingError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        is_port = port.isdecimal() and len(port) <= PORT_DIGITS_MAX and 0 < int(port) < 65_536
        if not colon or not host or not is_port:
            raise SettingError(f"{part} is not HOST:PORT")
        found.append((_host(host), int(port)))
    if not found:
        raise SettingError("no HOST:PORT is given")
    return found


def _host(text: str) -> str:
    """Without brackets. Raises SettingError for what sockets and the client library refuse by errors of their own."""
    if "[" in text or "]" in text:
        try:
            return str(IPv6Address(text[1:-1] if text[0] + text[-1] == "[]" else ""))
        except AddressValueError:
            raise SettingError(f"{text} is no address of IPv6 in brackets") from None
    try:
        text.encode("idna")
    except UnicodeError:
        raise SettingError(f"{text} is no host name: a part of it is empty or too long") from None
    return text
