"""The code blocks of a page, in order, and what is to be done with each.

A comment on the line before a block says what its language alone does not:

    <!-- stays -->                          the command stays until Ctrl-C; the reader goes on in another terminal
    <!-- again until it prints: TEXT -->    the reader repeats it until TEXT is there
    <!-- output -->                         each line of it was printed by the block before it
    <!-- not run: REASON -->                one of `REASONS`, or `run by PATH`, a test or a page that does it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"sh", "python", "properties", "yaml", "json", "dockerfile", "text"}
RUN = {"sh", "python"}
DOCKER = "needs Docker, `make test-compose` runs it"
REASONS = {
    DOCKER,
    "needs a bucket",
    "needs a Spark cluster",
    "needs a Kubernetes cluster",
    "needs machines of its own",
    "needs names that resolve",
    "needs what is yours",
    "would run this test again",
}
RUN_BY = "run by "
OUTPUT, STAYS, AGAIN, NOT_RUN = "output", "stays", "again until it prints: ", "not run: "
_FENCE = re.compile(r"( *)```(.*)")
_MARK = re.compile(r" *<!-- (.*) -->")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.mark.startswith(NOT_RUN)

    @property
    def reason(self) -> str:
        """Why it is not run; "" where it is, or is nothing to run."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN) else ""


def blocks_of(path: Path) -> list[Block]:
    """Raises ValueError for a block that does not end."""
    found: list[Block] = []
    lines = path.read_text().splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None:
            at += 1
            continue
        indent, language = fence[1], fence[2]
        end = lines.index(f"{indent}```", at + 1)
        mark = _MARK.fullmatch(lines[at - 1]) if at else None
        text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n"
        page = str(path.relative_to(ROOT))
        found.append(Block(page, at + 1, language, mark[1] if mark else "", text))
        at = end + 1
    return found


ALL = [block for path in PAGES for block in blocks_of(path)]


def commands(block: Block) -> list[str]:
    """The command lines of a shell block, whole and without what a shell does not see."""
    joined = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in joined if line.strip() and not line.lstrip().startswith("#")]
