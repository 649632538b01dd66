"""``mainspring store serve``: a store's files over HTTP, by name and hash, for workers of other hosts.

``models/NAME/manifest.json``, ``executables/SHA/`` (the names in it, as JSON), ``executables/SHA/NAME`` and
``weights/SHA.bin``, as in the store's folder, with ranges. Nothing else can be had, and nothing written. With
a file of tokens each request needs one: for a manifest one that may use the model, for the rest any.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store, check_name
from mainspring.messages.codes import Reason
from mainspring.transport.asgi import Connection, Server, listen_at
from mainspring.transport.keys import ServerKeys
from mainspring.transport.tokens import TokenFile, headers_of

_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^/@?\s:]+):([0-9]{1,5})")
_STOP_POLL_S = 0.05
STATUS = {Reason.UNAUTHENTICATED: 401, Reason.FORBIDDEN: 403, Reason.RATE_LIMITED: 429}
CACHED = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Headers of an answer that is named by its hash, which never changes."""


class ServingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `mainspring store serve`. Raises ValueError on a value that can't work."""

    store: str
    """Folder of the store."""
    address: str = "http://127.0.0.1:7600"
    """Address that workers connect to; port 0 takes any free one."""
    token_file: str = ""
    """File of the tokens of which workers need one, as ``mainspring token new`` writes it; empty: none."""
    token_reload_ms: float = 1_000.0
    """Time between two looks at whether that has changed."""
    max_connections: int = 256
    """Most connections at one time; one more is closed."""
    header_timeout_ms: float = 10_000.0
    """Time that a request's line and headers may take to come."""
    write_timeout_ms: float = 30_000.0
    """Time for which a client may read nothing of an answer before it is cut off."""
    tls: str = ""
    """Folder of the certificate that workers are shown at an address of ``https://``."""
    client_certificates: bool = False
    """True if workers need a certificate of the authority in that folder."""
    launcher_token_sha256: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        found = _ADDRESS.fullmatch(self.address)
        if found is None or int(found[2]) > 65_535:
            raise ValueError(f"the store's address is {self.address!r}; write it like http://127.0.0.1:7600")
        if self.encrypted and not self.tls:
            raise ValueError(
                f"the store's address is {self.address}, which needs --tls: the folder of a certificate, as "
                "`mainspring keys issue` makes it"
            )
        if self.client_certificates and not self.encrypted:
            raise ValueError("certificates of clients need an address of https:// and --tls")
        for field in ("token_reload_ms", "max_connections", "header_timeout_ms", "write_timeout_ms"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be greater than 0")

    @property
    def encrypted(self) -> bool:
        """Return whether the connections to that address are encrypted."""
        return self.address.startswith("https://")

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        found = _ADDRESS.fullmatch(self.address)
        assert found is not None
        return found[1].strip("[]"), int(found[2])

    def named(self, where: str) -> str:
        """Return the address that a host and port have."""
        return f"{self.address.partition('://')[0]}://{where}"


def run(config: ServingConfig, stop: threading.Event, on_ready: Callable[[str], None]) -> None:
    """Serve until ``stop`` is set; call ``on_ready`` with the address once workers can connect.

    Raises OSError if the address or the keys can't be had, `StoreError` without a store, ValueError for a
    file of tokens that can't be used.
    """
    store = Store(config.store)
    store.names()
    tokens = TokenFile(config)
    listener, where = listen_at(*config.place)
    with listener:
        asyncio.run(
            _serve(config, Files(store, tokens), listener, stop, lambda: on_ready(config.named(where)))
        )


class Files:
    """Answers what a worker asks."""

    def __init__(self, store: Store, tokens: TokenFile) -> None:
        self._root = store.root
        self._tokens = tokens

    def application(self) -> Starlette:
        """Return the routes."""
        return Starlette(
            routes=[
                Route("/models/{name}/manifest.json", self.manifest),
                Route("/executables/{digest}/", self.listing),
                Route("/executables/{digest}/{file}", self.executable),
                Route("/weights/{digest}.bin", self.weights),
            ]
        )

    def tick(self) -> None:
        """Look whether the tokens have changed."""
        self._tokens.tick(time.monotonic_ns())

    async def manifest(self, request: Request) -> Response:
        """Answer with a model's manifest."""
        name = request.path_params["name"]
        try:
            check_name(name)
        except StoreError as error:
            return PlainTextResponse(str(error), 400)
        return self._refused(request, name) or self._file(self._root / "models" / name / "manifest.json", {})

    async def listing(self, request: Request) -> Response:
        """Answer with the names of an executable's files."""
        digest = request.path_params["digest"]
        if refused := self._refused(request, None) or _wrong(digest):
            return refused
        try:
            names = sorted(os.listdir(self._root / "executables" / digest))
        except OSError as error:
            return PlainTextResponse(f"executables/{digest}: {error.strerror}", 404)
        return JSONResponse([each for each in names if _FILE.fullmatch(each)])

    async def executable(self, request: Request) -> Response:
        """Answer with a file of an executable."""
        digest, name = request.path_params["digest"], request.path_params["file"]
        if refused := self._refused(request, None) or _wrong(digest):
            return refused
        if not _FILE.fullmatch(name):
            return PlainTextResponse(f"{name[:200]!r} is not the name of a file of an executable", 400)
        return self._file(self._root / "executables" / digest / name, {})

    async def weights(self, request: Request) -> Response:
        """Answer with a file of weights."""
        digest = request.path_params["digest"]
        refused = self._refused(request, None) or _wrong(digest)
        return refused or self._file(self._root / "weights" / f"{digest}.bin", CACHED)

    def _refused(self, request: Request, name: str | None) -> Response | None:
        shown = request.headers.get("authorization")
        refusal = self._tokens.gate.authorise(shown, name, time.monotonic_ns())
        if refusal is None:
            return None
        return PlainTextResponse(refusal[1], STATUS.get(refusal[0], 403), headers_of(refusal))

    def _file(self, path: Path, headers: dict[str, str]) -> Response:
        if not path.is_file():
            return PlainTextResponse(f"{path.relative_to(self._root)} is not in this store", 404)
        return FileResponse(path, headers=headers, media_type="application/octet-stream")


def _wrong(digest: str) -> Response | None:
    if _HASH.fullmatch(digest):
        return None
    return PlainTextResponse(f"{digest[:200]!r} is not a SHA-256 in hexadecimal", 400)


async def _serve(
    config: ServingConfig,
    files: Files,
    listener: socket.socket,
    stop: threading.Event,
    on_ready: Callable[[], None],
) -> None:
    bounds = {
        "most": config.max_connections,
        "patience_s": config.header_timeout_ms / 1e3,
        "reading_s": config.write_timeout_ms / 1e3,
    }
    keys = ServerKeys(config.tls, clients=config.client_certificates) if config.encrypted else None
    web = Server(
        uvicorn.Config(
            files.application(),
            http=type("StoreConnection", (Connection,), bounds),
            ws="none",
            h11_max_incomplete_event_size=16_384,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
    )
    web.keys, web.handshake_s = keys, config.header_timeout_ms / 1e3
    serving = asyncio.create_task(web.serve([listener]))
    while not web.started and not serving.done():
        await asyncio.sleep(0.01)
    if not serving.done():
        on_ready()
    while not stop.is_set() and not serving.done():
        files.tick()
        await asyncio.sleep(_STOP_POLL_S)
    web.should_exit = True
    await serving
