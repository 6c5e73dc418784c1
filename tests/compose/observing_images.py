"""The images of Prometheus and Grafana, which no Dockerfile here builds."""

from __future__ import annotations

import re

import pytest

from tests.compose.compose_project import ROOT, ComposeProject

IMAGES = re.findall(r"image: ((?:prom|grafana)/\S+)", (ROOT / "docker-compose.yml").read_text())


def need_images(project: ComposeProject) -> None:
    """Skips the test where they cannot be had."""
    assert len(IMAGES) == 2
    for image in IMAGES:
        try:
            project.docker("image", "inspect", image)
        except AssertionError:
            try:
                project.docker("pull", "--quiet", image, timeout_s=300.0)
            except AssertionError as error:
                pytest.skip(f"{image} cannot be had here: {str(error).splitlines()[-1]}")
