"""Calls with tokens and without, where they are needed."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from mainspring.transport.tokens import token_sha256
from tests.gateway.fakes import serving, wait_until
from tests.gateway.grpc.conftest import EchoCluster, Fake
from tests.gateway.grpc.tensors import inputs
from tests.patience import PATIENCE_S

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def entry(secret: str, more: str) -> str:
    return f'[[token]]\nname = "{secret}"\nsha256 = "{token_sha256(secret)}"\n{more}\n'


def shown(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "tokens.toml"
    path.write_text(
        entry("all", 'models = ["*"]')
        + entry("some", 'models = ["dou*"]')
        + entry("slow", 'models = ["*"]\nrate = 0.001\nburst = 1')
        + entry("chief", 'models = ["*"]\nadmin = true')
    )
    with ExitStack() as stack:
        cluster = EchoCluster()
        stack.callback(cluster.stop)
        options = {"grpc_address": "grpc://127.0.0.1:0", "token_file": str(path)}
        served = stack.enter_context(serving(cluster.address, **options))
        found = served.grpc.removeprefix("grpc://")
        with InferenceServerClient(found) as client:
            last = next(reversed(cluster.specs))
            wait_until(lambda: client.is_model_ready(last, headers=shown("all")))
        yield found


@pytest.fixture
def client(address: str) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(address) as client:
        yield client


def code(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return str(caught.value.status()).removeprefix("StatusCode.")


def test_health_needs_no_token(address: str, client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata().name == "mainspring"
    with grpc.insecure_channel(address) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


def test_inference_needs_one_that_may_use_the_model(client: InferenceServerClient) -> None:
    assert code(client.infer, "double", inputs(X)) == "UNAUTHENTICATED"
    assert code(client.infer, "double", inputs(X), headers=shown("wrong")) == "UNAUTHENTICATED"
    assert client.infer("double", inputs(X), headers=shown("some"))
    assert code(client.infer, "wide", inputs(X), headers=shown("some")) == "PERMISSION_DENIED"


def test_a_token_s_rate_bounds_its_requests(client: InferenceServerClient) -> None:
    assert client.infer("double", inputs(X), headers=shown("slow"))
    with pytest.raises(InferenceServerException, match="come again in ") as caught:
        client.infer("double", inputs(X), headers=shown("slow"))
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_a_priority_is_no_better_than_the_token_s_best(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("some", 'models = ["*"]\nbest_priority = 3'))
    with ExitStack() as stack:
        cluster = EchoCluster()
        stack.callback(cluster.stop)
        options = {"grpc_address": "grpc://127.0.0.1:0", "token_file": str(path)}
        served = stack.enter_context(serving(cluster.address, **options))
        client = stack.enter_context(InferenceServerClient(served.grpc.removeprefix("grpc://")))
        wait_until(lambda: client.is_model_ready("double", headers=shown("some")))
        for priority in (1, 0, 5):
            client.infer("double", inputs(X), priority=priority, headers=shown("some"))
        assert [each.priority for each in cluster.arrivals] == [3, 0, 5]


def test_models_that_a_token_may_not_use_are_not_listed(client: InferenceServerClient) -> None:
    def listed(secret: str) -> set[str]:
        return {each.name for each in client.get_model_repository_index(headers=shown(secret)).models}

    assert listed("some") == {"double"}
    assert {"double", "wide", "echo-int8"} < listed("all")
    stats = client.get_inference_statistics(headers=shown("some"))
    assert [each.name for each in stats.model_stats] == ["double"]
    assert code(client.get_model_metadata, "wide", headers=shown("some")) == "PERMISSION_DENIED"


def test_only_an_administrator_changes_what_is_served(client: InferenceServerClient) -> None:
    assert code(client.load_model, "double", headers=shown("all")) == "PERMISSION_DENIED"
    assert code(client.unload_model, "double", headers=shown("all")) == "PERMISSION_DENIED"
    # There is no model repository here.
    assert code(client.load_model, "double", headers=shown("chief")) == "UNIMPLEMENTED"


def test_each_request_of_a_stream_needs_one(client: InferenceServerClient) -> None:
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)), headers=shown("some"))
    client.async_stream_infer("double", inputs(X), request_id="mine")
    result, _ = found.get(timeout=PATIENCE_S)
    assert result.get_response().id == "mine"
    client.async_stream_infer("wide", inputs(X), request_id="other")
    _, error = found.get(timeout=PATIENCE_S)
    assert "forbidden" in error.message()
    client.stop_stream()


def test_settings_are_read_by_all_and_changed_by_administrators(client: InferenceServerClient) -> None:
    shown_settings = client.get_trace_settings("double", headers=shown("some"), as_json=True)
    for change in (client.update_trace_settings, client.update_log_settings):
        settings = {"trace_rate": "100"} if change == client.update_trace_settings else {"log_file": ""}
        with pytest.raises(InferenceServerException, match="may not change") as caught:
            change(settings=settings, headers=shown("all"))
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        change(settings=settings, headers=shown("chief"))
    client.update_trace_settings(settings={"trace_rate": None}, headers=shown("chief"))
    assert client.get_trace_settings("double", headers=shown("some"), as_json=True) == shown_settings


def unavailable(header: str) -> Any:
    return pytest.raises(InferenceServerException, match=f"This protocol is restricted, .*'{header}'")


def test_groups_of_calls_that_need_metadata() -> None:
    rules = ("health,inference:infer-key=infer-value", "model-repository,shared-memory:admin-key=admin-value")
    infer = {"triton-grpc-protocol-infer-key": "infer-value"}
    admin = {"triton-grpc-protocol-admin-key": "admin-value"}
    with ExitStack() as stack:
        fake = Fake(stack, grpc_restricted_protocol=rules, ready_headers=infer)
        client = fake.client
        client.get_inference_statistics("double")
        with unavailable("triton-grpc-protocol-infer-key") as caught:
            client.is_server_live()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert client.is_server_live(headers=infer)
        with unavailable("triton-grpc-protocol-infer-key"):
            client.infer("double", inputs(X), headers=admin)
        assert client.infer("double", inputs(X), headers=infer).as_numpy("twice").tolist() == (2 * X).tolist()
        for call in (client.get_model_repository_index, client.get_system_shared_memory_status):
            with unavailable("triton-grpc-protocol-admin-key"):
                call(headers=infer)
            call(headers=admin)
        with pytest.raises(grpc.RpcError, match="This protocol is restricted"):
            next(fake.channel.unary_stream("/grpc.health.v1.Health/Watch")(b""))


def test_a_stream_of_a_restricted_group_ends_at_once() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_restricted_protocol=("inference:key=value",))
        found: queue.Queue[Any] = queue.Queue()
        fake.client.start_stream(lambda result, error: found.put(error))
        with unavailable("triton-grpc-protocol-key"):
            raise found.get(timeout=PATIENCE_S)
        fake.client.stop_stream()
        headers = {"triton-grpc-protocol-key": "value"}
        fake.client.start_stream(lambda result, error: found.put(error), headers=headers)
        fake.client.async_stream_infer("double", inputs(X))
        assert found.get(timeout=PATIENCE_S) is None
