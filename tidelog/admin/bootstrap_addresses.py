"""The addresses at which a client looks for its cluster, as they are written."""

from __future__ import annotations

from common.settings import SettingError

Address = tuple[str, int]


def parse_bootstrap(text: str) -> list[Address]:
    """`HOST:PORT,…`. Raises SettingError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise SettingError(f"{part} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise SettingError("no HOST:PORT is given")
    return found
