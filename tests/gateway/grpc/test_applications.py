"""``mainspring.Applications``, asked by gRPC's plain client with what the server says of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc

from mainspring import Client
from mainspring.gateway.grpc.messages import APPLICATIONS, methods
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

SPEC = {"members": ["one", "other"], "output": "sum", "kind": "value", "span": 10.0, "context": True}
Call = Callable[..., Any]


def caller(channel: grpc.Channel, **metadata: str) -> Call:
    def call(name: str, /, **fields: object) -> Any:
        method = methods(APPLICATIONS)[name]
        ask = channel.unary_unary(
            f"/{APPLICATIONS}/{name}", method.request.SerializeToString, method.response.FromString
        )
        return ask(method.request(**fields), metadata=tuple(metadata.items()), timeout=20)

    return call


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with (
        real_controller([emulated("one", 1_000_000), emulated("other", 1_000_000)]) as controller,
        real_worker("worker", controller),
        serving(controller, grpc_address="grpc://127.0.0.1:0") as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 20)
        yield addresses.grpc.removeprefix("grpc://")


def test_an_application_is_put_told_shown_forgotten_and_removed(host: str) -> None:
    with grpc.insecure_channel(host) as channel, tritonclient.grpc.InferenceServerClient(host) as triton:
        call = caller(channel)
        assert not call("List").applications
        assert call("Put", name="sums", specification=json.dumps(SPEC)).members[1].member == "other"
        given = tritonclient.grpc.InferInput("data", list(X.shape), "FP32")
        given.set_data_from_numpy(X)
        parameters = {"slo_ms": 20_000, "context": "ann"}
        answer = triton.infer("sums", [given], parameters=parameters).get_response()
        query_id = answer.parameters["query_id"].int64_param
        assert call("Observe", name="sums", query_id=query_id, y=[2, 2]).joined == 2
        assert call("Observe", name="sums", query_id=query_id, rewards=[0.5]).duplicate == 1
        found = call("Show", name="sums")
        assert (found.requests, found.joined, found.duplicate, found.contexts) == (1, 2, 1, 1)
        assert found.members[0].weight == pytest.approx(0.5)
        assert found.loss == pytest.approx(found.members[0].loss)
        assert json.loads(found.specification) == {"name": "sums", **SPEC}
        assert list(call("List").applications) == [found]
        call("Forget", name="sums", context="ann")
        assert call("Show", name="sums").contexts == 0
        call("Remove", name="sums")
        for name, fields, code, said in (
            ("Show", {}, "NOT_FOUND", "there is no application 'sums'"),
            ("Put", {"specification": "["}, "INVALID_ARGUMENT", "the specification is no JSON object"),
            ("Put", {"specification": "{}"}, "INVALID_ARGUMENT", "needs the key 'members'"),
            (
                "Put",
                {"specification": json.dumps({**SPEC, "loss": "os:system"})},
                "PERMISSION_DENIED",
                "loss",
            ),
            ("Observe", {"query_id": 1, "y": [1], "labels": ["a"]}, "INVALID_ARGUMENT", "not both"),
        ):
            with pytest.raises(grpc.RpcError, match=said) as refused:
                call(name, name="sums", **fields)
            assert refused.value.code() is getattr(grpc.StatusCode, code)


def test_changes_need_a_token_that_may_administer(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"search").hexdigest()
    path.write_text(f'[[token]]\nname = "search"\nsha256 = "{digest}"\nmodels = ["*"]\n')
    with (
        real_controller([]) as controller,
        serving(controller, grpc_address="grpc://127.0.0.1:0", token_file=str(path)) as addresses,
        grpc.insecure_channel(addresses.grpc.removeprefix("grpc://")) as channel,
    ):
        call = caller(channel, authorization="Bearer search")
        assert not call("List").applications
        for name in ("Put", "Remove", "Forget"):
            with pytest.raises(grpc.RpcError) as refused:
                call(name, name="sums")
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as unknown:
            caller(channel)("List")
        assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
