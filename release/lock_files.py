"""The lock files as values: each package's version and the hashes of its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from release.project import normalized

_PINNED = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^ \\]+)(?: ;[^\\]*)? \\\n((?: +--hash=.*\n?)+)", re.MULTILINE
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pinned(NamedTuple):
    """`hashes`: SHA-256 of each file, wheels and sdist, of which pip installs one."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(path: Path) -> dict[str, Pinned]:
    """By name. ValueError for a package without hashes."""
    text = path.read_text()
    found = [
        Pinned(normalized(name), version, tuple(_HASH.findall(hashes)))
        for name, version, hashes in _PINNED.findall(text)
    ]
    if len(found) != len(re.findall(r"^[A-Za-z0-9].*==", text, re.MULTILINE)) or not all(one.hashes for one in found):
        raise ValueError(f"{path} has a package without hashes")
    return {one.name: one for one in found}
