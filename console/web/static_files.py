"""The scripts, styles and pictures of pages. An address has the hash of its file's content. So browsers keep a file for
long, and yet a console that was upgraded is never shown with the scripts of the one before it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

PREFIX = "/static/"
ROUTE = PREFIX + "{digest}/{name:path}"
DIGEST_CHARACTERS = 16
KEPT = "public, max-age=31536000, immutable"


class StaticFolder:
    """The files of a folder as they are when the console begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests = {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_CHARACTERS]
            for path in folder.rglob("*")
            if path.is_file()
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._digests)

    def address_of(self, name: str) -> str:
        """Raises KeyError for a file that is not there."""
        return f"{PREFIX}{self._digests[name]}/{name}"

    async def show(self, request: Request) -> Response:
        """The file; nothing for an address of another content, which a browser would keep under that address."""
        name = str(request.path_params["name"])
        if name not in self._digests or self._digests[name] != request.path_params["digest"]:
            return PlainTextResponse("there is no such file", 404)
        return FileResponse(self._folder / name)
