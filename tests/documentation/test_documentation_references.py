"""The references are what the code says, and the navigation has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.node_settings.catalogue import NODE_SETTINGS
from common.topic_settings import TOPIC_SETTINGS
from kraft.features import SUPPORTED_FEATURES
from release.feature_levels import ADDED, RELEASES, common_levels
from release.project import ROOT, version
from release.reference_pages import DOCS, PAGES, commands


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_is_what_the_code_says(name: str) -> None:
    page = (DOCS / name).read_text()
    assert page == PAGES[name](page), "python -m release.reference_pages writes it"


def test_every_setting_and_every_command_is_there_once() -> None:
    settings = re.findall(
        r"^\| `([a-z0-9._]+)`(?: °)? \| (?!default)", (DOCS / "settings.md").read_text(), re.MULTILINE
    )
    assert sorted(settings) == sorted([one.name for one in NODE_SETTINGS] + [one.name for one in TOPIC_SETTINGS])
    listed = re.findall(r"^## tidelog (.*)$", (DOCS / "commands.md").read_text(), re.MULTILINE)
    assert listed == [" ".join(words) for words, _ in commands()]


@pytest.mark.parametrize("name", ["monitoring.md", "metrics.md"])
def test_what_to_do_about_an_alarm_or_a_metric_is_a_command_that_there_is(name: str) -> None:
    known = {" ".join(words) for words, _ in commands()}
    named = re.findall(r"`tidelog ([a-z][^`]*)`", re.sub(r"```.*?```", "", (DOCS / name).read_text(), flags=re.DOTALL))
    assert len(named) > 5
    assert [one for one in named if not any(one == words or one.startswith(f"{words} ") for words in known)] == []


def test_this_release_has_the_levels_of_the_code() -> None:
    assert RELEASES[version()] == SUPPORTED_FEATURES
    for name, (_, high) in SUPPORTED_FEATURES.items():
        if name not in ("metadata.version", "group.version"):
            assert {f"{name} {level}" for level in range(1, high + 1)} <= set(ADDED)


def test_any_two_neighbouring_releases_run_side_by_side() -> None:
    for first, second in zip(RELEASES, list(RELEASES)[1:], strict=False):
        assert all(low <= high for low, high in common_levels(first, second).values()), (first, second)
    same = common_levels(version(), version())
    assert same == RELEASES[version()]


def test_the_navigation_has_every_page() -> None:
    named = set(re.findall(r"^ +- [^#\n]+: ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert pages - named == set()
    assert named - pages == {"index.md", "architecture.md", "contributing.md", "changelog.md"}  # of the top folder


def test_pages_are_reached_from_the_readme_or_from_one_that_is() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#:]+\.md)", page.read_text())
        waiting += [(page.parent / link).resolve() for link in links]
    assert set(DOCS.rglob("*.md")) - seen == set()
