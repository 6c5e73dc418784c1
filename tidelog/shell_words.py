"""Names in commands that messages suggest: clients choose names, and users paste commands into a shell. No I/O."""

from __future__ import annotations

import shlex


def argument(name: str) -> str:
    """`name` as an argument of a command: a shell takes it as one word, and the command never as an option. A name that
    is not plain stands behind `--`, so options must come before it."""
    word = shlex.quote(name) if name.isprintable() else _escaped(name)
    return name if word == name and not name.startswith("-") else f"-- {word}"


def _escaped(name: str) -> str:
    """In the quotes of bash and zsh (`$'…'`) that have escapes, with octal ones for what a terminal would obey instead
    of showing it."""
    return f"$'{''.join(map(_shown, name))}'"


def _shown(one: str) -> str:
    if one in "'\\":
        return f"\\{one}"
    return one if one.isprintable() else "".join(f"\\{byte:03o}" for byte in one.encode(errors="surrogatepass"))
