"""The docs as a site: it builds without a warning, and every link of it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from release.project import ROOT
from release.site_pages import by_fences, in_site


class Page(HTMLParser):
    """Where a page leads to, what it loads, and the names in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.names.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and "href" in given and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return into


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            place, _, anchor = unquote(link).partition("#")
            if "://" in place or place.startswith("mailto:"):
                continue
            aim = (path.parent / place).resolve() if place else path
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.exists() or (anchor and aim in pages and anchor not in pages[aim].names):
                broken.append((path.name, link))
    assert broken == []


def test_a_page_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert [one for one in page.loaded if "//" in one] == [], path.name
        assert all((path.parent / unquote(one).split("?")[0]).exists() for one in page.loaded), path.name


def test_every_page_is_there_and_shows_no_marks_of_the_tests(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = (site / page.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        assert "<h1" in text
        assert not re.search(r"```|&lt;!-- |<!-- (?:not run|stays|output|again)", text), page.name


def test_a_code_block_of_a_list_stays_in_its_list(site: Path) -> None:
    text = (site / "upgrade.html").read_text()
    begin = text.index("<ol>")
    steps = text[begin : text.index("</ol>", begin)]
    assert steps.count("<li>") == 7 and '<div class="highlight">' in steps


@pytest.mark.parametrize(
    ("text", "origin", "source", "wanted"),
    [
        ("[a](docs/health.md#x)", "README.md", "index.md", "[a](health.md#x)"),
        ("[a](../README.md)", "docs/install.md", "install.md", "[a](index.md)"),
        ("[a](../security.md)", "docs/internals/proxy.md", "internals/proxy.md", "[a](../security.md)"),
        ("![a](../bench/results/x.png)", "docs/performance.md", "performance.md", "![a](pictures/x.png)"),
        ("[the code](../broker/node.py)", "docs/health.md", "health.md", "the code"),
        ("[a](#here) [b](https://x.test/y.md)", "docs/health.md", "health.md", "[a](#here) [b](https://x.test/y.md)"),
        ("- a\n  - b\n   c", "docs/health.md", "health.md", "- a\n    - b\n    c"),
    ],
)
def test_links_and_lists_are_those_of_the_site(text: str, origin: str, source: str, wanted: str) -> None:
    assert in_site(text, origin, source) == wanted


def test_code_is_left_alone_but_for_its_place() -> None:
    assert by_fences("a\n```sh\n  [x](y)\n```\nb", str.upper) == "A\n```sh\n  [x](y)\n```\nB"
    assert by_fences("- a\n\n  ```sh\n  b\n  ```\n", str) == "- a\n\n    ```sh\n    b\n    ```\n"


def test_the_site_needs_no_network() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert yaml.safe_load(re.sub(r"!!python/\S+", "", text))["theme"]["font"] is False
