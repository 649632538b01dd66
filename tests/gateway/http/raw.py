"""An HTTP client that sends what it is told, right or wrong."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from tests.patience import PATIENCE_S


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One connection."""

    def __init__(self, host: str, timeout_s: float = PATIENCE_S) -> None:
        name, _, port = host.rpartition(":")
        self.socket = socket.create_connection((name, int(port)), timeout_s)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Send a request and return its reply."""
        self.send(request(method, path, body, **headers))
        return self.reply(head_only=method == "HEAD")

    def reply(self, *, head_only: bool = False) -> Reply:
        """Return the next reply; fail if the connection ends before it is whole."""
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if first.split()[1] == "100":
            return self.reply(head_only=head_only)
        length = 0 if head_only else int(headers["content-length"])
        while len(self._rest) < length:
            self._read()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Reply(int(first.split()[1]), headers, body)

    def ended(self) -> bool:
        """Wait for the end of the connection; fail if something else comes."""
        assert not self._rest, self._rest
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"the connection ended behind {self._rest[:200]!r}"
        self._rest += data


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return a request; names of headers with underlines for hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "host: test"]
    if body:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def infer_body(rows: int = 1, columns: int = 4, **fields: Any) -> bytes:
    """Return the JSON of a request for a model of `make_spec`."""
    data = np.arange(rows * columns, dtype=np.float32).tolist()
    tensor = {"name": "data", "shape": [rows, columns], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor], **fields}).encode()
