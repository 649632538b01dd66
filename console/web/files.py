"""The page's files, as they lie in the package: read once, read again when they change, and never stale.

Browsers keep them and ask each time whether they are still the same (``ETag``), so that a newer console never
runs half of an older one's page.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import stat
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from mainspring.console.web.answers import failure

FOLDER = Path(__file__).resolve().parent.parent / "page"
"""Folder of the page's files, in a checkout and in the wheel."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_SQUEEZED = {".css", ".html", ".js", ".json", ".svg", ".txt", ".webmanifest"}
"""Kinds that are sent compressed to who takes that."""


class _File(NamedTuple):
    stamp: tuple[int, int]
    """Time of the last change and size: what differs when a file was written again."""
    etag: str
    kind: str
    plain: bytes
    squeezed: bytes | None


class Files:
    """Serves the files of one folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder.resolve()
        self._files: dict[str, _File] = {}

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file: the path's, or ``index.html``."""
        name = request.path_params.get("path", "") or "index.html"
        file = self._read(name)
        if file is None:
            text = f"there is no {name[:200]!r} here; the console's page is at the root, its API at api/"
            return failure(404, text)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if file.etag.removeprefix("W/") in _listed(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        body = file.plain
        if file.squeezed is not None and "gzip" in _listed(request.headers.get("accept-encoding", "")):
            body, headers["Content-Encoding"] = file.squeezed, "gzip"
        return Response(body, headers=headers, media_type=file.kind)

    def _read(self, name: str) -> _File | None:
        path = PurePosixPath(name)
        if path.is_absolute() or any(part.startswith(".") for part in path.parts) or "\0" in name:
            return None
        try:
            where = (self._folder / path).resolve()
            found = where.stat()
            if not where.is_relative_to(self._folder) or not stat.S_ISREG(found.st_mode):
                return None
            stamp = (found.st_mtime_ns, found.st_size)
            kept = self._files.get(str(path))
            if kept is None or kept.stamp != stamp:
                kept = self._files[str(path)] = _load(where, stamp)
        except (OSError, RuntimeError):
            return None  # no such file, a name that is too long, links that go round
        return kept


def _load(path: Path, stamp: tuple[int, int]) -> _File:
    plain = path.read_bytes()
    suffix = path.suffix.lower()
    kind = _TYPES.get(suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    squeezed = gzip.compress(plain, 9, mtime=0) if suffix in _SQUEEZED else None
    if squeezed is not None and len(squeezed) >= len(plain):
        squeezed = None
    return _File(stamp, f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"', kind, plain, squeezed)


def _listed(value: str) -> set[str]:
    """Return the entries of a header that is a list, without weights; weak tags as strong ones."""
    entries = [entry.strip().removeprefix("W/") for entry in value.split(",")]
    wanted = [entry for entry in entries if not entry.replace(" ", "").endswith(";q=0")]
    return {entry.partition(";")[0].strip() for entry in wanted}
