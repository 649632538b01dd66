"""With ``compatibility = "triton"`` texts of errors begin as Triton's do, over each way to a gateway."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mainspring.messages.codes import Reason
from mainspring.messages.served import Awaited
from tests.gateway.fakes import fake_cluster, serving, wait_until
from tests.gateway.http.raw import Peer
from tests.patience import PATIENCE_S

REQUEST = "[request id: <id_unknown>] "
Given = Sequence[tuple[str, Any]]
"""Inputs by name."""
Infer = Callable[..., None]


class Clients:
    """Triton's clients of one gateway."""

    def __init__(self, http: str, grpc: str) -> None:
        self.host = http
        self.http = tritonclient.http.InferenceServerClient(http)
        self.grpc = tritonclient.grpc.InferenceServerClient(grpc)
        self._streamed: queue.Queue[Any] = queue.Queue()
        self.grpc.start_stream(lambda result, error: self._streamed.put(error or result))

    def close(self) -> None:
        self.grpc.stop_stream()
        self.grpc.close()
        self.http.close()

    def each(self) -> dict[str, Infer]:
        """Return a way to ask for inference of each kind; it raises what the client does."""
        return {
            "http": lambda *given, **more: self._ask(tritonclient.http, self.http.infer, *given, **more),
            "grpc": lambda *given, **more: self._ask(tritonclient.grpc, self.grpc.infer, *given, **more),
            "stream": lambda *given, **more: self._ask(tritonclient.grpc, self._stream, *given, **more),
        }

    def _stream(self, model: str, inputs: Any, **more: Any) -> None:
        self.grpc.async_stream_infer(model, inputs, **more)
        found = self._streamed.get(timeout=PATIENCE_S)
        if isinstance(found, Exception):
            raise found

    def _ask(
        self,
        kind: Any,
        infer: Callable[..., Any],
        model: str,
        given: Given,
        outputs: Sequence[str] = (),
        **more: Any,
    ) -> None:
        inputs = []
        for name, array in given:
            datatype = {"float32": "FP32", "int32": "INT32"}[str(array.dtype)]
            inputs.append(kind.InferInput(name, array.shape, datatype))
            inputs[-1].set_data_from_numpy(array)
        asked = [kind.InferRequestedOutput(name) for name in outputs] or None
        infer(model, inputs, outputs=asked, **more)


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        cluster = stack.enter_context(fake_cluster())
        addresses = stack.enter_context(
            serving(
                cluster.address,
                http_address="http://127.0.0.1:0",
                grpc_address="grpc://127.0.0.1:0",
                compatibility="triton",
                max_rows_per_request=1,
            )
        )
        http = addresses.http.removeprefix("http://")
        found = Clients(http, addresses.grpc.removeprefix("grpc://"))
        stack.callback(found.close)
        wait_until(found.http.is_server_ready)
        yield found


def rows(count: int, columns: int = 4, dtype: Any = np.float32) -> Any:
    return np.ones((count, columns), dtype)


@pytest.mark.parametrize(
    ("model", "given", "more", "begins"),
    [
        ("no", [("data", rows(1))], {}, "Request for unknown model: 'no' is not found"),
        (
            "double",
            [("data", rows(1))],
            {"model_version": "7"},
            "Request for unknown model: 'double' version 7 is not found",
        ),
        (
            "double",
            [("data", rows(1))],
            {"model_version": "x"},
            "failed to get model version from specified version string 'x'",
        ),
        (
            "double",
            [("data", rows(1)), ("more", rows(1))],
            {},
            f"{REQUEST}expected 1 inputs but got 2 inputs for model 'double'",
        ),
        (
            "double",
            [("other", rows(1))],
            {},
            f"{REQUEST}unexpected inference input 'other' for model 'double'",
        ),
        (
            "double",
            [("data", rows(1, dtype=np.int32))],
            {},
            f"{REQUEST}inference input 'data' data-type is 'INT32', but model 'double' expects 'FP32'",
        ),
        (
            "double",
            [("data", rows(2, 3))],
            {},
            f"{REQUEST}unexpected shape for input 'data' for model 'double'. Expected [-1,4], got [2,3]",
        ),
        (
            "double",
            [("data", rows(9))],
            {},
            f"{REQUEST}inference request batch-size must be <= 8 for 'double'",
        ),
        (
            "double",
            [("data", rows(1))],
            {"outputs": ["more"]},
            "unexpected inference output 'more' for model 'double'",
        ),
        ("hold", [("data", rows(1))], {"timeout": 20_000}, "Request timeout expired"),
    ],
)
def test_a_text_begins_as_tritons(
    clients: Clients, model: str, given: Given, more: dict[str, Any], begins: str
) -> None:
    for way, infer in clients.each().items():
        with pytest.raises(InferenceServerException) as caught:
            infer(model, given, **more)
        assert caught.value.message().startswith(begins), (way, caught.value.message())


def test_the_reason_stays_in_a_field_of_its_own(clients: Clients) -> None:
    body = b'{"inputs": [{"name": "data", "datatype": "FP32", "shape": [9, 4], "data": [%s]}]}'
    found = Peer(clients.host).ask("POST", "/v2/models/double/infer", body % b",".join([b"1"] * 36)).json
    assert found["reason"] == Reason.TOO_MANY_ROWS
    assert found["error"].startswith(f"{REQUEST}inference request batch-size")
    found = Peer(clients.host).ask("POST", "/v2/models/double/infer", b"{").json
    assert found["error"].startswith("failed to parse the request JSON buffer")


def test_a_server_has_the_configured_name() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, http_address="http://127.0.0.1:0", server_name="triton") as addresses,
        tritonclient.http.InferenceServerClient(addresses.http.removeprefix("http://")) as client,
    ):
        assert client.get_server_metadata()["name"] == "triton"
        wait_until(client.is_server_ready)
        with pytest.raises(InferenceServerException, match="unknown_model: "):
            client.get_model_metadata("no")


@pytest.mark.parametrize("compatibility", ["none", "triton"])
def test_a_request_for_a_model_that_is_awaited_is_told_to_come_again(compatibility: str) -> None:
    ways = {"compatibility": compatibility} if compatibility == "triton" else {}
    body = b'{"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
    with (
        fake_cluster() as cluster,
        serving(cluster.address, http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:0", **ways)
        as addresses,
        ExitStack() as stack,
    ):  # fmt: skip
        clients = Clients(addresses.http.removeprefix("http://"), addresses.grpc.removeprefix("grpc://"))
        stack.callback(clients.close)
        wait_until(clients.http.is_server_ready)
        cluster.tell(Awaited({"soon": "being compiled: version 1: it is being compiled"}))
        peer = Peer(clients.host)
        wait_until(lambda: peer.ask("GET", "/v2/models/soon/ready").status == 503)
        for method, path in (("POST", "infer"), ("GET", "config"), ("GET", "stats")):
            found = peer.ask(method, f"/v2/models/soon/{path}", body if method == "POST" else b"")
            assert (found.status, found.json["reason"]) == (503, Reason.MODEL_NOT_READY), found.json
            assert "being compiled: version 1" in found.json["error"]
        for way, infer in clients.each().items():
            with pytest.raises(InferenceServerException, match="being compiled: version 1") as caught:
                infer("soon", [("data", rows(1))])
            begins = "Request for unknown model: " if ways else "model_not_ready: "
            assert caught.value.message().startswith(begins), (way, caught.value.message())
        assert peer.ask("POST", "/v2/models/never/infer", body).status == 404
