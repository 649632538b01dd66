"""The source of model files that a worker lacks: a folder, a served store, or a place that fsspec knows.

All have the layout of a store (`mainspring.compiler.artifact.store`). `worker.fetching` checks names, lengths
and hashes of what they give.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mainspring.extras import missing

CHUNK_BYTES = 1 << 20
"""Read at a time."""
TIMEOUT_S = 20.0
"""Time that a server may take to accept a connection, and to send anything more, in seconds."""
MOST_LISTING_BYTES = 1 << 20


class SourceError(Exception):
    """A source can't be reached or does not have what is asked; the text names both."""


class Source(Protocol):
    """A store that is read from."""

    name: str
    """Name of the source, for messages."""

    def listing(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; raise `SourceError`."""

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes from ``offset`` on, some at a time; raise `SourceError`."""


def source_of(where: str, token: str = "", tls: ssl.SSLContext | None = None) -> Source:
    """Return the source that a folder or URL names; raise ValueError for a URL that nothing here can read.

    ``token`` is shown to a served store, and ``tls`` says whom an ``https://`` one has to prove to be.
    """
    if where.startswith(("http://", "https://")):
        return ServedStore(where, token, tls)
    if "://" in where:
        return Anywhere(where)
    return Folder(Path(where))


class Folder:
    """A store's folder, such as one that the network mounts."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def listing(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            return sorted(os.listdir(self._root / folder))
        except OSError as error:
            raise SourceError(f"{self._root / folder}: {error.strerror}") from None

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes."""
        try:
            with (self._root / path).open("rb", buffering=0) as file:
                file.seek(offset)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise SourceError(f"{self._root / path}: {error.strerror}") from None


class ServedStore:
    """The store that `mainspring store serve` serves, over HTTP or HTTPS."""

    def __init__(self, url: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        """Connect to nothing yet; raise ValueError for a URL without a host."""
        self.name = url
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the address of a store, such as http://host:7600")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls

    def listing(self, folder: str) -> list[str]:
        """Return the names that the server lists."""
        content = b""
        for chunk in self._get(f"{folder}/", 0):
            content += chunk
            if len(content) > MOST_LISTING_BYTES:
                raise SourceError(
                    f"{self.name} lists more than {MOST_LISTING_BYTES} bytes of names in {folder}"
                )
        try:
            names = json.loads(content)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise SourceError(
                f"{self.name} does not list {folder} as a store does; is it `mainspring store serve`?"
            )
        return names

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes."""
        return self._get(path, offset)

    def _get(self, path: str, offset: int) -> Iterator[bytes]:
        import http.client

        connection: http.client.HTTPConnection
        if self._https:
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        headers = self._headers | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            connection.request("GET", f"{self._base}/{urllib.parse.quote(path)}", headers=headers)
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # All of it was fetched before.
            if answer.status != (http.HTTPStatus.PARTIAL_CONTENT if offset else http.HTTPStatus.OK):
                said = answer.read(300).decode("utf-8", "replace").strip()
                raise SourceError(f"{self.name} answers {answer.status} for {path}: {said or answer.reason}")
            while chunk := answer.read1(CHUNK_BYTES):
                yield chunk
            if answer.length:
                raise SourceError(f"{self.name} ended {answer.length} bytes before the end of {path}")
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{self.name} can't be read: {error or type(error).__name__}") from None
        finally:
            connection.close()


class Anywhere:
    """A URL that fsspec has a file system for, such as ``s3://bucket/store``."""

    def __init__(self, url: str) -> None:
        """Look the file system up; raise ValueError if there is none for the URL."""
        self.name = url
        self._files: Any
        try:
            import fsspec.core

            self._files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{url} can't be read: {missing(error) or error}") from None
        self._root = str(root).rstrip("/")

    def listing(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            found = self._files.ls(f"{self._root}/{folder}", detail=False)
        except Exception as error:
            raise SourceError(f"{self.name}/{folder}: {error or type(error).__name__}") from None
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes."""
        try:
            with self._files.open(f"{self._root}/{path}", "rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK_BYTES):
                    yield bytes(chunk)
        except Exception as error:
            raise SourceError(f"{self.name}/{path}: {error or type(error).__name__}") from None
