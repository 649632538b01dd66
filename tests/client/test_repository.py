"""Loading and unloading over HTTP, against a server that notes what it is asked."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.cli.verbs import models
from mainspring.client.errors import MainspringError
from mainspring.client.repository import RepositoryClient

Asked = list[tuple[str, Any]]


@pytest.fixture
def asked() -> Iterator[tuple[RepositoryClient, Asked]]:
    seen: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, json.loads(body)))
            refuses = "refused" in self.path
            self.send_response(403 if refuses else 200)
            self.end_headers()
            answer = {"error": "forbidden: off", "reason": "forbidden"} if refuses else {}
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield RepositoryClient(f"http://127.0.0.1:{server.server_port}"), seen
    server.shutdown()
    serving.join()
    server.server_close()


def test_files_are_sent_in_the_place_of_a_folder(asked: tuple[RepositoryClient, Asked]) -> None:
    client, seen = asked
    client.load("a b")
    client.load("net", {"1/model.onnx": b"\0\1"})
    sent = {"parameters": {"file:1/model.onnx": base64.b64encode(b"\0\1").decode()}}
    assert seen == [
        ("/v2/repository/models/a%20b/load", {}),
        ("/v2/repository/models/net/load", sent),
    ]
    with pytest.raises(MainspringError, match=r"^off$"):
        client.load("refused", {"1/model.onnx": b""})


def test_a_file_is_added_as_a_model_of_its_name(
    asked: tuple[RepositoryClient, Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, seen = asked
    monkeypatch.setattr(models, "_repository", lambda *_: client)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"onnx")
    told = CliRunner().invoke(build_app(), ["models", "add", str(path)])
    assert (told.exit_code, told.output) == (0, "added net\n")
    assert seen[0][0] == "/v2/repository/models/net/load"
    path.unlink()
    assert isinstance(CliRunner().invoke(build_app(), ["models", "add", str(path)]).exception, OSError)
