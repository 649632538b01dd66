"""Unmodified `tritonclient.http` against a live cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.patience import PATIENCE_S

http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def client(real: Served) -> Iterator[Any]:
    with http.InferenceServerClient(real.host, concurrency=4) as each:
        yield each


@pytest.fixture
def fake_client(served: Served) -> Iterator[Any]:
    with http.InferenceServerClient(served.host, concurrency=4) as each:
        yield each


def tensor(name: str, array: Any, datatype: str, *, binary: bool = True) -> Any:
    made = http.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer(fake_client: Any, binary: bool, version: str, compression: str | None) -> None:
    result = fake_client.infer(
        "double",
        [tensor("data", X, "FP32", binary=binary)],
        model_version=version,
        outputs=[
            http.InferRequestedOutput("sum", binary_data=not binary),
            http.InferRequestedOutput("twice"),
        ],
        request_id="seventeen",
        timeout=10_000_000,
        priority=1,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
        parameters={"own": "thing"},
    )
    assert (result.as_numpy("twice") == 2 * X).all()
    assert (result.as_numpy("sum") == X.sum(axis=1)).all()
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("seventeen", "double", "1")
    assert [each["name"] for each in response["outputs"]] == ["sum", "twice"]
    parameters = response["parameters"]
    assert 0 < parameters["deadline_ns_left"] < 10_000_000_000
    assert (parameters["batch_size"], parameters["cold_start"], parameters["worker"]) == (2, True, "fake")
    assert parameters["queue_ns"] > 0


def test_large_replies_are_compressed_when_that_is_asked_for(fake_client: Any) -> None:
    x = np.ones((1, 1 << 20), np.float32)
    result = fake_client.infer(
        "wide",
        [tensor("data", x, "FP32")],
        request_compression_algorithm="gzip",
        response_compression_algorithm="deflate",
    )
    assert (result.as_numpy("twice") == 2 * x).all()


def test_async_infer(fake_client: Any) -> None:
    asked = [
        fake_client.async_infer("double", [tensor("data", X + number, "FP32", binary=number % 2 == 0)])
        for number in range(20)
    ]
    for number, each in enumerate(asked):
        assert (each.get_result(timeout=10).as_numpy("twice") == 2 * (X + number)).all()


def test_every_datatype_of_a_real_cluster(client: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = client.infer("image", [tensor("data", X, "FP32")])
    assert result.as_numpy("twice").dtype == np.float32
    assert result.get_response()["parameters"]["worker"] == "one"
    result = client.infer("half", [tensor("in", np.ones((4, 3), ml_dtypes.bfloat16), "BF16")])
    assert result.as_numpy("out").dtype == np.float16
    assert result.as_numpy("out").shape == (4, 3)
    a, b = np.ones((2, 2), np.int32), np.ones((2, 2, 2), np.uint8)
    result = client.infer("pair", [tensor("b", b, "UINT8"), tensor("a", a, "INT32", binary=False)])
    assert (result.as_numpy("y").dtype, result.as_numpy("z").dtype) == (np.int64, np.bool_)


@pytest.mark.parametrize("binary", [True, False])
def test_bytes_are_served_in_slots(client: Any, binary: bool) -> None:
    text = np.array([b"one", "zwölf".encode(), b""], dtype=np.object_)
    outputs = [http.InferRequestedOutput("out", binary_data=binary)]
    result = client.infer("text", [tensor("in", text, "BYTES", binary=binary)], outputs=outputs)
    found = result.as_numpy("out")
    assert found.shape == (3, 2)
    assert not any(found.reshape(-1))
    with pytest.raises(utils.InferenceServerException, match="at most 16 fit") as caught:
        client.infer("text", [tensor("in", np.array([b"x" * 17], np.object_), "BYTES")])
    assert caught.value.status() == "400"
    with pytest.raises(utils.InferenceServerException, match="no slots for BYTES"):
        client.infer("image", [tensor("data", text, "BYTES")])


def test_classification(fake_client: Any) -> None:
    outputs = [http.InferRequestedOutput("twice", class_count=2)]
    result = fake_client.infer("double", [tensor("data", X, "FP32")], outputs=outputs)
    assert result.as_numpy("twice").tolist() == [
        [b"6.000000:3", b"4.000000:2"],
        [b"14.000000:3", b"12.000000:2"],
    ]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("image")
    assert client.is_model_ready("image", "1")
    assert not client.is_model_ready("image", "2")
    assert not client.is_model_ready("nothing")
    found = client.get_server_metadata()
    assert found["name"] == "mainspring"
    assert "binary_tensor_data" in found["extensions"]
    for version in ("", "1"):
        found = client.get_model_metadata("text", version)
        assert found["inputs"] == [{"name": "in", "datatype": "BYTES", "shape": [-1]}]
        assert found["outputs"] == [{"name": "out", "datatype": "BYTES", "shape": [-1, 2]}]
        assert client.get_model_config("image", version)["max_batch_size"] == 8
    with pytest.raises(utils.InferenceServerException, match="did you mean 'image'") as caught:
        client.get_model_metadata("imag")
    assert caught.value.status() == "404"


def test_statistics_count_what_was_asked(client: Any) -> None:
    before = client.get_inference_statistics("image", "1")["model_stats"][0]
    client.infer("image", [tensor("data", X, "FP32")])
    after = client.get_inference_statistics("image")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    names = {each["name"] for each in client.get_inference_statistics()["model_stats"]}
    assert {"image", "text", "half", "pair"} <= names


def test_the_repository_without_one(client: Any) -> None:
    index = client.get_model_repository_index()
    assert {"name": "image", "version": "1", "state": "READY", "reason": ""} in index
    for change in (client.load_model, client.unload_model):
        with pytest.raises(utils.InferenceServerException, match="repository") as caught:
            change("image")
        assert caught.value.status() in ("400", "501", "503")


def test_trace_settings(client: Any) -> None:
    shown = client.get_trace_settings()
    assert shown["trace_level"] == ["OFF"]
    assert client.get_trace_settings("image") == shown
    changed = client.update_trace_settings("image", {"trace_rate": "5", "trace_count": 7})
    assert changed == client.get_trace_settings("image") == {**shown, "trace_rate": "5", "trace_count": "7"}
    assert client.get_trace_settings() == client.get_trace_settings("text") == shown
    assert client.update_trace_settings("image", {"trace_rate": None, "trace_count": None}) == shown
    with pytest.raises(utils.InferenceServerException, match="set trace_address") as caught:
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert caught.value.status() == "501"
    with pytest.raises(utils.InferenceServerException, match="not served") as caught:
        client.get_trace_settings("nothing")
    assert caught.value.status() == "404"


def test_log_settings(client: Any) -> None:
    logger = logging.getLogger("mainspring")
    before, shown = logger.level, client.get_log_settings()
    try:
        assert client.update_log_settings({"log_file": ""}) == shown
        changed = client.update_log_settings({"log_info": True, "log_verbose_level": 1})
        assert changed == {**shown, "log_info": True, "log_verbose_level": 1}
        assert logger.isEnabledFor(logging.DEBUG), "the gateway is in this process"
    finally:
        logger.setLevel(before)
    with pytest.raises(utils.InferenceServerException, match="log_format is always") as caught:
        client.update_log_settings({"log_format": "ISO8601"})
    assert caught.value.status() == "501"
    with pytest.raises(utils.InferenceServerException, match="there is no log setting"):
        client.update_log_settings({"nothing": 1})


def controllers_refusal(client: Any, **options: Any) -> Any:
    """Return how the controller refuses; if the machine stands still, the gateway gives up before it does."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("image", [tensor("data", X, "FP32")], **options)
        if "timed_out" not in caught.value.message() or time.monotonic() > give_up_s:
            return caught.value


def test_deadlines_that_cant_be_met_are_refused_with_the_earliest_that_can(client: Any) -> None:
    x = [tensor("data", X, "FP32")]
    refusal = controllers_refusal(client, timeout=100)
    assert refusal.status() == "503"
    assert "deadline_unreachable" in refusal.message()
    assert "the earliest finish that was possible" in refusal.message()
    for given in ({"headers": {"x-mainspring-slo-ms": "0.1"}}, {"parameters": {"slo_ms": 0.1}}):
        assert "deadline_unreachable" in controllers_refusal(client, timeout=10_000_000, **given).message()
    result = client.infer("image", x, headers={"x-mainspring-slo-ms": "5000"}, timeout=9_000_000)
    assert 0 < result.get_response()["parameters"]["deadline_ns_left"] < 5_000_000_000
    left_ns = client.infer("image", x).get_response()["parameters"]["deadline_ns_left"]
    assert 5_000_000_000 < left_ns < 20_000_000_000, "the gateway's default"
    with pytest.raises(utils.InferenceServerException, match="x-mainspring-slo-ms is 'soon'") as caught:
        client.infer("image", x, headers={"x-mainspring-slo-ms": "soon"})
    assert caught.value.status() == "400"


def test_wrong_requests_are_told_what_is_wrong(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="came as 'FP64'; model 'image' takes") as caught:
        client.infer("image", [tensor("data", X.astype(np.float64), "FP64")])
    assert caught.value.status() == "400"
    with pytest.raises(utils.InferenceServerException, match="has no version 7") as caught:
        client.infer("image", [tensor("data", X, "FP32")], model_version="7")
    assert caught.value.status() == "404"
    with pytest.raises(utils.InferenceServerException, match="there is no output 'z'"):
        client.infer("image", [tensor("data", X, "FP32")], outputs=[http.InferRequestedOutput("z")])


def test_a_client_that_gives_up_takes_its_request_with_it(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    before = len(cluster.cancels)
    with (
        http.InferenceServerClient(served.host, network_timeout=0.3) as impatient,
        pytest.raises(Exception, match="timed out"),
    ):
        impatient.infer("hold", [tensor("data", X, "FP32")])
    wait_until(lambda: len(cluster.cancels) == before + 1)


def test_a_rejection_of_the_controllers(fake_client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="too soon") as caught:
        fake_client.infer("reject", [tensor("data", X, "FP32")])
    assert caught.value.status() == "503"
    assert "70.0 ms from now" in caught.value.message()
