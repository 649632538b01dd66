"""Every call of Triton's client, blocking, against a whole cluster of processes."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.gateway.fakes import fake_cluster, serving, wait_until
from tests.patience import PATIENCE_S

DATA = np.ones((2, 1000), np.float32)


def inputs(rows: int = 2) -> list[InferInput]:
    tensor = InferInput("data", [rows, 1000], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, 1000), np.float32))
    return [tensor]


def parameters(result: Any) -> dict[str, Any]:
    found = result.get_response().parameters
    return {name: getattr(found[name], found[name].WhichOneof("parameter_choice")) for name in found}


def refused(code: str, match: str) -> Any:
    class Expected:
        def __enter__(self) -> None:
            self.raises = pytest.raises(InferenceServerException, match=match)
            self.caught = self.raises.__enter__()

        def __exit__(self, *details: Any) -> bool:
            swallowed = self.raises.__exit__(*details)
            assert self.caught.value.status() == f"StatusCode.{code}"
            return bool(swallowed)

    return Expected()


@pytest.fixture
def client(live: str) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(live) as client:
        yield client


def test_health(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("quick")
    assert client.is_model_ready("quick", "1")
    assert not client.is_model_ready("quick", "2")
    assert not client.is_model_ready("nothing")


def test_words_that_scripts_look_for() -> None:
    with (
        fake_cluster() as cluster,
        serving(
            cluster.address,
            http_address="http://127.0.0.1:0",
            grpc_address="grpc://127.0.0.1:0",
            compatibility="triton",
        ) as addresses,
    ):
        clients = (
            InferenceServerClient(addresses.grpc.removeprefix("grpc://")),
            tritonclient.http.InferenceServerClient(addresses.http.removeprefix("http://")),
        )
        wait_until(clients[1].is_server_ready)
        assert clients[0].get_server_metadata(as_json=True)["name"] == "triton"
        assert clients[1].get_server_metadata()["name"] == "triton"
        for client in clients:
            with pytest.raises(InferenceServerException, match=r"Request for unknown model: .* not served"):
                client.get_model_metadata("no-such-model")
            client.close()


def test_metadata(client: InferenceServerClient) -> None:
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "mainspring"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("quick", as_json=True)
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "data", "datatype": "FP32", "shape": ["-1", "1000"]}]
    assert model["outputs"] == [{"name": "output", "datatype": "FP32", "shape": ["-1", "1000"]}]
    with refused("NOT_FOUND", "did you mean 'quick'"):
        client.get_model_metadata("quik")
    with refused("NOT_FOUND", "no version 3"):
        client.get_model_metadata("quick", "3")
    with refused("INVALID_ARGUMENT", "whole number"):
        client.get_model_metadata("quick", "three")


def test_configuration(client: InferenceServerClient) -> None:
    config = client.get_model_config("quick", as_json=True)["config"]
    assert config["max_batch_size"] == 16
    assert config["input"] == [{"name": "data", "data_type": "TYPE_FP32", "dims": ["1000"]}]
    assert config["output"] == [{"name": "output", "data_type": "TYPE_FP32", "dims": ["1000"]}]
    assert config["instance_group"] == [{"name": "quick_0", "count": 1, "kind": "KIND_MODEL"}]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    with refused("NOT_FOUND", "not served"):
        client.get_model_config("nothing")


def test_statistics_count_what_was_answered(client: InferenceServerClient) -> None:
    def successes() -> int:
        stats = client.get_inference_statistics("quick").model_stats
        assert [(each.name, each.version) for each in stats] == [("quick", "1")]
        return int(stats[0].inference_stats.success.count)

    before = successes()
    for _ in range(3):
        client.infer("quick", inputs())
    assert successes() == before + 3
    stats = client.get_inference_statistics(as_json=True)["model_stats"]
    assert [each["name"] for each in stats] == ["quick", "slow"]
    assert {"batch_size", "compute_infer"} <= stats[0]["batch_stats"][0].keys()
    assert int(stats[0]["inference_stats"]["compute_infer"]["ns"]) > 0
    with refused("NOT_FOUND", "not served"):
        client.get_inference_statistics("nothing")


def test_trace_settings(client: InferenceServerClient) -> None:
    settings = client.get_trace_settings(as_json=True)["settings"]
    assert settings["trace_level"] == {"value": ["OFF"]}
    changed = client.update_trace_settings("quick", {"trace_rate": "5", "trace_count": "7"}, as_json=True)
    assert changed["settings"]["trace_rate"] == {"value": ["5"]}
    assert client.get_trace_settings("quick", as_json=True) == changed
    assert client.get_trace_settings(as_json=True)["settings"] == settings
    assert client.update_trace_settings("quick", {"trace_rate": None, "trace_count": None}, as_json=True) == {
        "settings": settings
    }
    with refused("UNIMPLEMENTED", "set trace_address"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    with refused("INVALID_ARGUMENT", "whole number from 1"):
        client.update_trace_settings(settings={"trace_rate": "0"})
    with refused("NOT_FOUND", "not served"):
        client.get_trace_settings("nothing")


def test_log_settings(client: InferenceServerClient) -> None:
    before = client.get_log_settings(as_json=True)["settings"]
    assert before["log_error"] == {"bool_param": True}
    found = client.update_log_settings({"log_info": True, "log_verbose_level": 1}, as_json=True)
    assert found["settings"]["log_verbose_level"] == {"uint32_param": 1}
    assert client.get_log_settings(as_json=True) == found
    quiet = client.update_log_settings({"log_info": False, "log_verbose_level": 0}, as_json=True)
    assert quiet["settings"]["log_info"] == {"bool_param": False}
    with refused("UNIMPLEMENTED", "log_file is always"):
        client.update_log_settings({"log_file": "/tmp/x"})
    with refused("INVALID_ARGUMENT", "there is no log setting"):
        client.update_log_settings({"log_nothing": True})


def test_an_inference_with_all_that_a_client_may_say(client: InferenceServerClient) -> None:
    result = client.infer(
        "quick",
        inputs(),
        model_version="1",
        outputs=[InferRequestedOutput("output")],
        request_id="request-7",
        sequence_id=3,
        sequence_start=True,
        priority=1,
        timeout=5_000_000,
        client_timeout=10,
        headers={"x-mainspring-slo-ms": "9000"},
        parameters={"anything": "else", "number": 1, "fraction": 0.5, "yes": True},
    )
    assert result.get_response().id == "request-7"
    assert result.get_response().model_version == "1"
    assert result.as_numpy("output").shape == (2, 1000)
    found = parameters(result)
    assert found["worker"] == "worker-0"
    assert found["batch_size"] == 2
    assert 0 < found["queue_ns"] < 5e9
    assert 0 < found["deadline_ns_left"] < 5e9
    assert found["cold_start"] in (True, False)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_compressed_request(client: InferenceServerClient, algorithm: str) -> None:
    result = client.infer("quick", inputs(), compression_algorithm=algorithm)
    assert result.as_numpy("output").shape == (2, 1000)


def test_classification(client: InferenceServerClient) -> None:
    wanted = [InferRequestedOutput("output", class_count=3)]
    found = client.infer("quick", inputs(), outputs=wanted).as_numpy("output")
    assert found.tolist() == [[b"0.000000:0", b"0.000000:1", b"0.000000:2"]] * 2


def test_refusals(client: InferenceServerClient) -> None:
    with refused("DEADLINE_EXCEEDED", "the earliest finish that was possible is .* ms from now"):
        client.infer("slow", inputs(), timeout=20_000)
    with refused("NOT_FOUND", "not served"):
        client.infer("nothing", inputs())
    with refused("INVALID_ARGUMENT", "takes at once"):
        client.infer("quick", inputs(4_097))
    with refused("INVALID_ARGUMENT", "no output 'what'"):
        client.infer("quick", inputs(), outputs=[InferRequestedOutput("what")])
    with refused("INVALID_ARGUMENT", "missing"):
        client.infer("quick", [])


def test_calls_side_by_side_with_callbacks(client: InferenceServerClient) -> None:
    found: queue.Queue[Any] = queue.Queue()
    for number in range(40):
        client.async_infer(
            "quick",
            inputs(),
            lambda result, error: found.put((result, error)),
            request_id=str(number),
            timeout=20_000_000,
        )
    ended = [found.get(timeout=PATIENCE_S) for _ in range(40)]
    assert not [error for _, error in ended if error]
    assert {result.get_response().id for result, _ in ended} == {str(number) for number in range(40)}


def test_a_call_that_is_cancelled_or_times_out(client: InferenceServerClient) -> None:
    found: queue.Queue[Any] = queue.Queue()
    call = client.async_infer("slow", inputs(), lambda result, error: found.put(error))
    call.cancel()
    assert found.get(timeout=PATIENCE_S).status() == "StatusCode.CANCELLED"
    client.async_infer("slow", inputs(), lambda result, error: found.put(error), client_timeout=0.02)
    assert found.get(timeout=PATIENCE_S).status() == "StatusCode.DEADLINE_EXCEEDED"
    with refused("DEADLINE_EXCEEDED", "."):
        client.infer("slow", inputs(), client_timeout=0.02)


def test_a_stream(client: InferenceServerClient) -> None:
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    for number in range(20):
        client.async_stream_infer("quick", inputs(), request_id=str(number), timeout=20_000_000)
    client.async_stream_infer("slow", inputs(), request_id="late", timeout=20_000)
    client.async_stream_infer("quick", inputs(), request_id="last", enable_empty_final_response=True)
    ended = [found.get(timeout=PATIENCE_S) for _ in range(22)]
    errors = [error.message() for _, error in ended if error]
    assert len(errors) == 1
    assert "deadline_unreachable" in errors[0] or "timed_out" in errors[0], errors
    results = [result for result, _ in ended if result]
    assert {each.get_response().id for each in results} == {*map(str, range(20)), "last"}
    assert all(parameters(each)["triton_final_response"] is True for each in results)
    client.stop_stream()


def test_an_answer_as_json(client: InferenceServerClient) -> None:
    answer = client.infer("quick", inputs(1)).get_response(as_json=True)
    assert answer["outputs"][0]["shape"] == ["1", "1000"]
    assert json.dumps(answer)
