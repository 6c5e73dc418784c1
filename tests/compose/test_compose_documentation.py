"""The pages' blocks for Docker, as they stand but for the project's name and ports."""

from __future__ import annotations

import urllib.request

import pytest

from tests.compose.compose_project import ComposeProject
from tests.compose.observing_images import need_images
from tests.documentation.pages import ALL, DOCKER, Block, commands

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
BLOCKS = [block for block in ALL if block.reason == DOCKER]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_a_block_does_what_it_says(project: ComposeProject, block: Block) -> None:
    for line in commands(block):
        if "--profile observe" in line:
            need_images(project)
        project.typed(line, timeout_s=600.0)


def test_the_object_stores_console_is_here_and_nowhere_else(project: ComposeProject) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{project.console_port}/", timeout=30) as answer:
        assert answer.status == 200
    published = project.compose("port", "minio", "9001").strip()
    assert published == f"127.0.0.1:{project.console_port}"
