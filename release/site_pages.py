"""What mkdocs calls while it builds the site (`hooks` of mkdocs.yml): pages of the top folder, links, and pictures.

The pages are written for a reader of the repository, whose links go from README.md to docs/ and back. In the site they
lie in one folder. Links to code have no place in it: they become plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OF_TOP_FOLDER = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
PICTURES = "pictures"
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
_MARK = re.compile(r"^ *<!-- (?:not run: |stays|again until|output|made by|levels|end|figures).*-->\n", re.MULTILINE)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)
_INDENT = 4


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds pages of the top folder, and the pictures that pages show of other folders."""
    for name, place in OF_TOP_FOLDER.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    for page in (ROOT / "docs").rglob("*.md"):
        for link in _LINK.finditer(page.read_text()):
            path = (page.parent / link["target"]).resolve()
            if link["picture"] and path.suffix == ".png" and ROOT / "docs" not in path.parents:
                where = f"{PICTURES}/{path.name}"
                if files.get_file_from_path(where) is None:
                    files.append(File.generated(config, where, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page without what only the tests read, and with the site's links."""
    source = page.file.src_uri
    origin = next((name for name, place in OF_TOP_FOLDER.items() if place == source), f"docs/{source}")
    return by_fences(_MARK.sub("", markdown), lambda text: in_site(text, origin, source))


def in_site(text: str, origin: str, source: str) -> str:
    """`text` of the file `origin`, with links from the site's page `source`; nested lists as Markdown wants them."""

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        place = placed(posixpath.normpath(posixpath.join(posixpath.dirname(origin), target)), bool(match["picture"]))
        if place is None:
            return match["text"]
        relative = posixpath.relpath(place, posixpath.dirname(source) or ".")
        return f"{match['picture']}[{match['text']}]({relative}{match['anchor'] or ''})"

    return _NESTED.sub(" " * _INDENT, _LINK.sub(link, text))


def placed(path: str, is_picture: bool) -> str | None:
    """Where a file of the repository is in the site; None for one that is not there."""
    if path in OF_TOP_FOLDER:
        return OF_TOP_FOLDER[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{PICTURES}/{posixpath.basename(path)}" if is_picture else None


def by_fences(markdown: str, change: Callable[[str], str]) -> str:
    """`change` of what is outside of code blocks; those of list items as far in as the library wants them."""
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), indented(fence[0])]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def indented(fence: str) -> str:
    given = len(fence) - len(fence.lstrip(" "))
    return fence if not given else "\n".join(" " * _INDENT + line[given:] for line in fence.split("\n"))
