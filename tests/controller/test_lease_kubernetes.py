"""The lease in Kubernetes, against a server that keeps one object as the API does."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.authority import Authority
from mainspring.controller import lease_kubernetes
from mainspring.controller.lease import StoreError
from mainspring.controller.lease_files import open_store
from mainspring.controller.lease_kubernetes import TTL_NS, ApiServer, KubernetesStore

PATH = "/apis/coordination.k8s.io/v1/namespaces/models/leases"


class Server(ThreadingHTTPServer):
    """Keeps leases, each with a version that a replacement has to name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kept: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.lock = threading.Lock()
        self.broken = False
        self.token = ""
        """The `Authorization` of the last request."""
        self.losing = 0
        """Replies that are lost from now on, of writes that were carried out."""

    def write(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.kept[name] = body
        return body


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def reply(self, status: int, body: dict[str, Any]) -> None:
        if self.command != "GET" and status < 400 and self.server.losing:
            self.server.losing -= 1
            self.close_connection = True
            return
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, reason: str) -> None:
        self.reply(status, {"kind": "Status", "status": "Failure", "reason": reason, "code": status})

    def handle_one(self) -> None:
        self.server.token = self.headers.get("Authorization", "")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.server.broken:
            self.fail(500, "InternalError")
            return
        with self.server.lock:
            if self.command == "POST":
                name = body["metadata"]["name"]
                if name in self.server.kept:
                    self.fail(409, "AlreadyExists")
                else:
                    self.reply(201, self.server.write(name, body))
                return
            name = self.path.partition("?")[0].removeprefix(f"{PATH}/")
            kept = self.server.kept.get(name)
            if kept is None:
                self.fail(404, "NotFound")
            elif self.command == "GET":
                self.reply(200, kept)
            elif body["metadata"].get("resourceVersion") != kept["metadata"]["resourceVersion"]:
                self.fail(409, "Conflict")
            else:
                self.reply(200, self.server.write(name, body))

    do_GET = do_POST = do_PUT = handle_one  # noqa: N815


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def store(server: Server, holder: str) -> KubernetesStore:
    api = ApiServer("127.0.0.1", server.server_address[1], None)
    return KubernetesStore(api, "models", "mainspring", holder, f"tcp://{holder}:7300")


def test_a_claim_is_for_one_and_ends_with_its_time(server: Server) -> None:
    one, other = store(server, "one"), store(server, "other")
    assert one.look(0) is None
    assert one.claim(0, 1)
    assert not other.claim(0, 2)
    lease = other.look(TTL_NS - 1)
    assert lease is not None
    assert (lease.epoch, lease.holder, lease.address, lease.held) == (1, "one", "tcp://one:7300", True)
    assert one.renew(TTL_NS // 2)
    assert not other.claim(TTL_NS, 2), "it was seen to be renewed just now"
    assert other.claim(2 * TTL_NS, 2)
    assert not one.renew(2 * TTL_NS)
    assert not one.claim(2 * TTL_NS, 3)
    assert server.kept["mainspring"]["spec"]["leaseTransitions"] == 2


def test_what_is_given_back_is_free_at_once_and_its_epoch_is_not(server: Server) -> None:
    one, other = store(server, "one"), store(server, "other")
    assert one.claim(0, 5)
    one.release()
    assert not other.claim(1, 5)
    assert other.claim(1, 6)
    one.release()
    assert other.renew(2), "who holds nothing gives nothing back"


def test_a_pod_that_starts_again_under_its_name_waits_like_any_other(server: Server) -> None:
    assert store(server, "one").claim(0, 1)
    again = store(server, "one")
    assert not again.claim(10, 2)
    assert again.claim(10 + TTL_NS, 2)


def test_a_renewal_whose_reply_was_lost_was_one(server: Server) -> None:
    one, other = store(server, "one"), store(server, "other")
    assert one.claim(0, 1)
    server.losing = 1
    with pytest.raises(StoreError):
        one.renew(1)
    assert not other.claim(2, 2)
    assert one.renew(3)


def test_a_claim_whose_reply_was_lost_is_over_after_its_time(server: Server) -> None:
    one = store(server, "one")
    server.losing = 1
    with pytest.raises(StoreError):
        one.claim(0, 1)
    assert not one.renew(1)
    assert not one.claim(1, 2)
    assert one.claim(1 + TTL_NS, 2)


def test_an_object_that_others_edit_stays_held(server: Server) -> None:
    one = store(server, "one")
    assert one.claim(0, 1)
    server.write("mainspring", server.kept["mainspring"])
    assert one.renew(1)


def test_a_server_that_fails_or_is_gone_is_named(server: Server) -> None:
    one = store(server, "one")
    server.broken = True
    with pytest.raises(StoreError, match=r"answers GET /apis/.*/mainspring with 500: InternalError"):
        one.look(0)
    server.broken = False
    server.kept["mainspring"] = {"metadata": {}}
    with pytest.raises(StoreError, match="with 200: this is not a Lease"):
        one.look(0)
    gone = Server()
    gone.server_close()
    with pytest.raises(StoreError, match=r"Kubernetes at 127.0.0.1:.* refused"):
        store(gone, "one").claim(0, 1)


def test_a_pod_speaks_over_tls_with_the_token_of_its_account(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Authority.create(tmp_path / "keys", "here").issue("gateway", "g0", ["localhost"], 1)
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shows.load_cert_chain(shown / "cert.pem", shown / "key.pem")
    server.socket = shows.wrap_socket(server.socket, server_side=True)
    account = tmp_path / "account"
    account.mkdir()
    monkeypatch.setattr(lease_kubernetes, "ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
    with pytest.raises(ValueError, match="not a pod with an account"):
        open_store("kubernetes:mainspring", "one", "tcp://one:7300")
    (account / "namespace").write_text("models")
    (account / "ca.crt").write_bytes((shown / "ca.pem").read_bytes())
    (account / "token").write_text("first\n")
    one = open_store("kubernetes:mainspring", "one", "tcp://one:7300")
    assert one.claim(0, 1)
    assert server.token == "Bearer first"
    (account / "token").write_text("second\n")
    assert one.renew(1)
    assert server.token == "Bearer second"


def test_outside_a_pod_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="this is not a pod"):
        open_store("kubernetes:mainspring", "one", "tcp://one:7300")


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["claim", "renew", "wait"])), max_size=30))
def test_no_epoch_has_two_holders(steps: list[tuple[int, str]]) -> None:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        stores, now_ns, won = [store(server, str(number)) for number in range(3)], 0, []
        for number, step in steps:
            if step == "wait":
                now_ns += TTL_NS // 2
            elif step == "renew":
                stores[number].renew(now_ns)
            else:
                lease = stores[number].look(now_ns)
                epoch = 1 + (lease.epoch if lease else 0)
                if stores[number].claim(now_ns, epoch):
                    won.append(epoch)
        assert won == sorted(set(won))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
