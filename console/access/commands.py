"""Runs commands of `tidelog` as a person: for what needs the object store too, apart from the console's memory.

A command logs in by a file of properties that is in no directory, so the credentials are on no disk and in no list of
processes. What a command prints is bounded, and so are its time and how many run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from common.settings import SettingError, read_properties
from console.access.trouble import Trouble

AT_ONCE_MAX = 2
WAIT_S = 20.0
OUTPUT_BYTES_MAX = 32 << 20
REASON_BYTES = 4_000
LINE_BYTES_MAX = 1 << 16
WORD_MAX = 4_000
TOKEN = "token"
"""An OAuth token among the properties, which are those of clients otherwise."""


class Ended(NamedTuple):
    """`said`: the last of what it wrote on standard error."""

    code: int
    output: bytes
    said: str


class Commands:
    """Of all sessions."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE_MAX)

    async def run(
        self,
        words: Sequence[str],
        bootstrap: str,
        properties: Mapping[str, str],
        *,
        limit_s: float,
        says: Callable[[str], None] = lambda line: None,
    ) -> Ended:
        """`tidelog WORDS`; `says` gets each line of standard error. Raises Trouble for words that are no words of a
        command, for properties that a file cannot hold, and when it takes too long."""
        if any("\0" in word or len(word) > WORD_MAX for word in words):
            raise Trouble("no name is so long, or has such characters")
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_S)
        except TimeoutError:
            raise Trouble("others have such questions running; try again", is_passing=True) from None
        try:
            with contextlib.ExitStack() as files:
                descriptors = _kept(files, properties)
                options = ["--bootstrap", bootstrap, "--command-config", f"/proc/self/fd/{descriptors[-1]}"]
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "tidelog", *_placed(words, options),
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                    pass_fds=descriptors, limit=LINE_BYTES_MAX,
                )  # fmt: skip
                return await _followed(process, limit_s, says)
        finally:
            self._places.release()


def _kept(files: contextlib.ExitStack, properties: Mapping[str, str]) -> list[int]:
    """The files that the command reads, the properties last. A token has a file of its own. Raises Trouble if a command
    would not read exactly these properties: a value that ends its line could name files of this machine."""
    lines, descriptors = dict(properties), list[int]()
    if token := lines.pop(TOKEN, ""):
        descriptors.append(files.enter_context(secret_file(token)))
        lines["sasl.oauthbearer.token.endpoint.url"] = f"file:///proc/self/fd/{descriptors[0]}"
    if not is_kept(lines):
        raise Trouble("commands cannot be given these credentials")
    return [*descriptors, files.enter_context(secret_file(_properties_text(lines)))]


def is_kept(properties: Mapping[str, str]) -> bool:
    """Whether a file of properties holds just these. Its lines end at more than \\r and \\n, it drops the spaces around
    values, and a line that ends in a backslash goes on."""
    try:
        return read_properties(_properties_text(properties)) == properties
    except SettingError:
        return False


def _properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _placed(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Options come before `--`, after which names are no options."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *options, *words[at:]]


@contextlib.contextmanager
def secret_file(text: str) -> Iterator[int]:
    """A file in memory alone, by its descriptor."""
    descriptor = os.memfd_create("tidelog-console", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def _followed(process: asyncio.subprocess.Process, limit_s: float, says: Callable[[str], None]) -> Ended:
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(limit_s):
            output, said = await asyncio.gather(_read(process.stdout), _heard(process.stderr, says))
            code = await process.wait()
    except TimeoutError:
        raise Trouble(f"it was not done within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(code, output, said)


async def _read(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while part := await stream.read(1 << 16):
        found += part
        if len(found) > OUTPUT_BYTES_MAX:
            raise Trouble("the answer is too large; ask for less")
    return bytes(found)


async def _heard(stream: asyncio.StreamReader, says: Callable[[str], None]) -> str:
    said = ""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # a line without end
            continue
        if not line:
            return said.strip()
        text = line.decode(errors="replace").rstrip()
        said = (said + "\n" + text)[-REASON_BYTES:]
        says(text)
