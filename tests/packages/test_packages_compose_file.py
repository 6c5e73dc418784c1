"""docker-compose.yml: which service mounts which secrets. `make test-compose` runs it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from release.project import ROOT

MAKER = "secrets"
COMPOSED: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSED["services"]
HAVING = {
    "authority": [],
    "cluster-secret": [f"{role}-{number}" for role in ("broker", "controller") for number in range(3)],
    "proxy-secrets": ["proxy-0", "proxy-1"],
}


def mounts(service: str) -> dict[str, str]:
    """Where each volume is mounted."""
    words = (volume.split(":") for volume in SERVICES[service].get("volumes", []))
    return {name: path for name, path, *_ in words}


@pytest.mark.parametrize("volume", HAVING)
def test_only_the_services_that_need_secrets_mount_them(volume: str) -> None:
    found = sorted(name for name in SERVICES if volume in mounts(name) and name != MAKER)
    assert found == HAVING[volume]


def test_each_secret_that_a_service_is_given_is_made_for_it() -> None:
    made = (ROOT / "docker" / "make-secrets").read_text()
    for name, service in SERVICES.items():
        paths = [str(value) for value in service.get("environment", {}).values() if str(value).startswith("/run/")]
        for path in paths:
            if not (held := [volume for volume, at in mounts(name).items() if path.startswith(f"{at}/")]):
                assert (name.startswith("proxy"), path) == (True, "/run/object-store/credentials"), (name, path)
                continue
            begin = mounts(MAKER)[held[0]]
            rest = path.removeprefix(mounts(name)[held[0]])
            assert f"{begin}{rest}" in made or f"--into {begin}{rest.rpartition('/')[0]} " in made, (name, path)


def test_the_image_has_each_directory_on_which_secrets_are_made() -> None:
    """Owner and mode of a new volume are those of the directory in the image."""
    (installed,) = re.findall(
        r"install -d -o tidelog -g tidelog -m 0700 ((?:.*\\\n)*.*)", (ROOT / "Dockerfile").read_text()
    )
    assert set(mounts(MAKER).values()) <= set(installed.split())
