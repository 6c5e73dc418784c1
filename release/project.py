"""What the project says of itself: its name, version, license, and the dependencies that it declares."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tidelog.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def project() -> dict[str, Any]:
    """What pyproject.toml says, which has the version from `tidelog`."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def version() -> str:
    return VERSION


def declared(extra: str = "") -> set[str]:
    """The normalized names of direct dependencies, of the project or of an extra."""
    own = project()
    texts = own["optional-dependencies"][extra] if extra else own["dependencies"]
    return {normalized(found[0]) for text in texts if (found := _NAME.match(text))}


def normalized(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()
