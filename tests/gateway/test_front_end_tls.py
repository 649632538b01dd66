"""HTTP, gRPC and metrics over TLS: who is served, what is shown, and what a relay on the way sees."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http as triton_http

from mainspring import Client
from mainspring.cli.authority import Authority
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.grpc.messages import message
from mainspring.gateway.server import Addresses
from mainspring.transport import accepting, keys
from mainspring.transport.tokens import token_sha256
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_encrypted import recorded
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

TOKEN = "ms_a_token_that_nobody_is_to_see_on_the_way"
NOWHERE = "tcp://127.0.0.1:1"
X = np.ones((2, 4), np.float32)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "keys", "here")
    made.issue("gateway", "g0", ("localhost", "127.0.0.1"), 30)
    return made


@pytest.fixture
def folder(authority: Authority, tmp_path: Path) -> Path:
    """The gateway's keys."""
    return tmp_path / "keys/g0"


@contextmanager
def gateway(folder: Path, controller: str = NOWHERE, **options: Any) -> Iterator[Addresses]:
    addresses = {"http": "https", "grpc": "grpcs", "metrics": "https"}
    given = {f"{name}_address": f"{scheme}://127.0.0.1:0" for name, scheme in addresses.items()}
    with serving(controller, tls=str(folder), **given, **options) as found:
        yield found


def trusting(folder: Path, shows: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if shows is not None:
        context.load_cert_chain(shows / "cert.pem", shows / "key.pem")
    return context


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def connected(address: str, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", port_of(address), timeout=PATIENCE_S, context=context)


def get(address: str, path: str, context: ssl.SSLContext) -> int:
    """Return the status of a page."""
    connection = http.client.HTTPSConnection(
        "localhost", port_of(address), timeout=PATIENCE_S, context=context
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def live(address: str, credentials: grpc.ChannelCredentials) -> bool:
    """Return whether a gRPC server answers; raise RpcError if it does not."""
    target = f"localhost:{port_of(address)}"
    with grpc.secure_channel(target, credentials) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        return bool(call(b"", timeout=20))


def shown(folder: Path, by: Path | None = None) -> grpc.ChannelCredentials:
    own = (by / "key.pem", by / "cert.pem") if by is not None else ()
    return grpc.ssl_channel_credentials(
        (folder / "ca.pem").read_bytes(), *(each.read_bytes() for each in own)
    )


def test_every_protocol_is_served_over_tls_to_those_who_know_the_authority(folder: Path) -> None:
    with gateway(folder) as addresses:
        assert addresses.http.startswith("https://127.0.0.1:")
        assert addresses.grpc.startswith("grpcs://127.0.0.1:")
        context = trusting(folder)
        assert get(addresses.http, "/v2/health/live", context) == 200
        assert get(addresses.metrics, "/metrics", context) == 200
        assert live(addresses.grpc, shown(folder))
        with pytest.raises(ssl.SSLCertVerificationError):
            get(addresses.http, "/v2/health/live", ssl.create_default_context())


def test_inference_over_tls_and_no_token_and_no_tensor_on_the_way(folder: Path) -> None:
    tokens = {"launcher_token_sha256": token_sha256(TOKEN)}
    pattern = b"a tensor, seen by nobody but gateway and worker".ljust(32 * 4 // 4, b".")[:32]
    inputs = np.frombuffer(pattern, np.float32).reshape(2, 4)
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        gateway(folder, controller, **tokens) as addresses,
        Client(addresses.zeromq, token=TOKEN) as client,
        recorded(port_of(addresses.http)) as (by_http, http_passed),
        recorded(port_of(addresses.grpc)) as (by_grpc, grpc_passed),
    ):
        wait_until(lambda: workers_ready(client, 1, 1), PATIENCE_S)
        headers = {"authorization": f"Bearer {TOKEN}"}
        factory = lambda: trusting(folder)  # noqa: E731
        over_http = triton_http.InferenceServerClient(
            f"localhost:{port_of(by_http)}", ssl=True, ssl_context_factory=factory
        )
        tensor = triton_http.InferInput("data", [2, 4], "FP32")
        tensor.set_data_from_numpy(inputs)
        assert over_http.infer("a", [tensor], headers=headers).as_numpy("sum").shape == (2,)
        over_http.close()
        asked = message("inference.ModelInferRequest")(model_name="a", raw_input_contents=[inputs.tobytes()])
        asked.inputs.add(name="data", datatype="FP32", shape=[2, 4])
        with grpc.secure_channel(f"localhost:{port_of(by_grpc)}", shown(folder)) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert call(
                asked.SerializeToString(), timeout=20, metadata=(("authorization", f"Bearer {TOKEN}"),)
            )
    for passed in (http_passed, grpc_passed):
        assert len(passed) > 1_000
        assert TOKEN.encode() not in passed
        assert pattern not in passed


def test_clients_without_a_certificate_or_with_a_revoked_one_are_refused(
    authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_NS", 1_000_000)
    known = authority.issue("client", "known", (), 30)
    stranger = Authority.create(folder.parent.parent / "others", "here").issue("client", "stranger", (), 30)
    with gateway(folder, client_certificates=True) as addresses:
        for path in (None, stranger):
            with pytest.raises((OSError, http.client.HTTPException)):
                get(addresses.http, "/v2/health/live", trusting(folder, path))
            with pytest.raises(grpc.RpcError):
                live(addresses.grpc, shown(folder, path))
        assert get(addresses.http, "/v2/health/live", trusting(folder, known)) == 200
        assert live(addresses.grpc, shown(folder, known))
        authority.revoke("known")
        time.sleep(0.01)
        with pytest.raises((OSError, http.client.HTTPException)):
            get(addresses.http, "/v2/health/live", trusting(folder, known))
        with pytest.raises(grpc.RpcError, match="certificate has been revoked"):
            live(addresses.grpc, shown(folder, known))


def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_NS", 1_000_000)

    def serial(address: str) -> str:
        context = trusting(folder)
        with (
            socket.create_connection(("127.0.0.1", port_of(address))) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as tls,
        ):
            return str((tls.getpeercert() or {})["serialNumber"])

    with gateway(folder) as addresses:
        before = serial(addresses.http)
        assert serial(addresses.grpc) == before
        authority.issue("gateway", "g0", ("localhost",), 30)
        time.sleep(0.01)
        for address in (addresses.http, addresses.grpc, addresses.metrics):
            assert serial(address) != before


def test_handshakes_that_stop_halfway_keep_nobody_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "MAX_HANDSHAKES", 8)
    with gateway(folder, http_header_timeout_ms=2_000.0) as addresses:
        slow = [socket.create_connection(("127.0.0.1", port_of(addresses.http))) for _ in range(40)]
        for number, each in enumerate(slow):
            each.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
        assert get(addresses.http, "/v2/health/live", trusting(folder)) == 200
        for each in slow:
            each.settimeout(PATIENCE_S)
            # The oldest made room, the others' time is over; some are told so by TLS.
            with contextlib.suppress(ConnectionResetError):
                while each.recv(100):
                    pass
        for said in (b"GET / HTTP/1.1\r\n\r\n", bytes(1_000)):
            with socket.create_connection(("127.0.0.1", port_of(addresses.http))) as sock:
                sock.settimeout(PATIENCE_S)
                sock.sendall(said)
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP/1.1 2" not in sock.recv(1_000)
        assert get(addresses.http, "/v2/health/live", trusting(folder)) == 200
        for each in slow:
            each.close()


def test_an_address_over_tls_needs_a_folder_and_the_folder_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"http_address is https://127\.0\.0\.1:0, which needs tls"):
        GatewayConfig(http_address="https://127.0.0.1:0")
    with pytest.raises(ValueError, match="client_certificates is set without tls"):
        GatewayConfig(client_certificates=True)
    config = GatewayConfig(address="tcp://127.0.0.1:*", http_address="https://127.0.0.1:0", tls=str(tmp_path))
    with pytest.raises(OSError, match=r"has no cert\.pem"):
        server.run(config, threading.Event())


def test_what_a_large_body_costs_is_bounded_over_tls_too(folder: Path) -> None:
    with gateway(folder, http_max_body_bytes=1 << 20) as addresses:
        connection = connected(addresses.http, trusting(folder))
        connection.request("POST", "/v2/models/a/infer", json.dumps({}).ljust(900_000))
        assert connection.getresponse().status in (400, 404, 503)
        connection.close()
        connection.putrequest("POST", "/v2/models/a/infer")
        connection.putheader("content-length", str(2 << 20))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_half_handshakes_keep_no_new_client_waiting(folder: Path) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting(folder).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    with (
        gateway(folder, grpc_max_connections=40, grpc_handshake_timeout_ms=60_000.0) as addresses,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(120):
            there = ("127.0.0.1", port_of(addresses.grpc))
            stack.enter_context(socket.create_connection(there, 20)).sendall(hello)
        began = time.monotonic()

        def answered() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return live(addresses.grpc, shown(folder))
            return False

        wait_until(answered, 30)
        assert time.monotonic() - began < 8
