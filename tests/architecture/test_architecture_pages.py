"""What the pages about the inside name exists, and each invariant names its code and its test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.sim.bugs import ALL_BUGS

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
INTERNALS = sorted((ROOT / "docs" / "internals").glob("*.md"))
PAGES = [ARCHITECTURE, ROOT / "CONTRIBUTING.md", *INTERNALS]
USERS_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = sorted(
    path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("bench", "release", "tests")
)
ARCHITECTURE_BYTES_MAX = 8_192
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]*))?\)")
PLANTED = re.compile(r"planted bug `(\w+)`")
INVARIANT = re.compile(r"(?ms)^- \*\*.*?(?=^- |^#|^$|\Z)")
PRIVATE_WORDS = re.compile(
    r"(?i)\b(nobody|whoever|anew|told|knocks?|turnstile|strangers?|departures?|crowd(?:s|ed)?)\b"
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def named_paths(page: str) -> set[str]:
    """Code spans that begin with a folder here: `storage/recovery/recovery.py`, `tests/a.py::test_b`, `tests/sim/`."""
    return {span for span in CODE.findall(page) if "/" in span and span.split("/")[0] in FOLDERS and " " not in span}


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@cache
def anchors(page: Path) -> set[str]:
    """As a page's readers have them: headings in small letters, a hyphen for a space, without punctuation."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_files_tests_and_planted_bugs_exist(path: Path) -> None:
    page = path.read_text()
    for span in named_paths(page):
        file, _, test = span.partition("::")
        assert (ROOT / file).exists(), span
        assert not test or test in functions(ROOT / file), span
    assert set(PLANTED.findall(page)) <= set(ALL_BUGS)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_to_pages_and_headings(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        page = path.parent / target
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


@pytest.mark.parametrize("path", INTERNALS, ids=name)
def test_an_invariant_names_its_code_and_its_test(path: Path) -> None:
    """An invariant is a list item that begins in bold."""
    invariants = INVARIANT.findall(path.read_text())
    assert invariants
    for invariant in invariants:
        assert re.search(r"\bCode:\s+`", invariant), invariant
        assert re.search(r"\bTest:\s+(`tests/|planted bug)", invariant), invariant


@pytest.mark.parametrize("path", [*PAGES, *USERS_PAGES], ids=name)
def test_words_are_those_of_the_field(path: Path) -> None:
    assert PRIVATE_WORDS.findall(CODE.sub("", path.read_text())) == []


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_words_in_the_code_are_those_of_the_field(room: Path) -> None:
    """In identifiers, comments, messages and the meanings of settings alike."""
    files = sorted(room.rglob("*.py"))
    assert files
    found = {name(file): PRIVATE_WORDS.findall(file.read_text().replace("_", " ")) for file in files}
    assert {file: words for file, words in found.items() if words} == {}


def test_the_overview_is_short_and_leads_to_every_page() -> None:
    page = ARCHITECTURE.read_text()
    assert len(page.encode()) <= ARCHITECTURE_BYTES_MAX
    linked = {(ROOT / target).resolve() for target, _ in LINK.findall(page)}
    assert set(INTERNALS) <= linked
