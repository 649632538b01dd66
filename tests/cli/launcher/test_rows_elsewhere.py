"""Models with time in front through a whole cluster: strangers with other rows, every protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import InvalidInput, TooManyRows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from tests.compiler.test_row_axes import FEATURES, HIDDEN, recurrent

STRANGERS = 8
ROUNDS = 6
LONGEST = 20
WAIT_S = 60.0
MODEL = "lstm"


class Site(NamedTuple):
    zeromq: str
    http: str
    grpc: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    onnx.save_model(recurrent("LSTM", both=True), path / f"{MODEL}.onnx")
    compile_file(path / f"{MODEL}.onnx", MODEL, Store(path / "store"), (1, 4, 16), most={"T": LONGEST})
    return path


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    gateway, controller, http, grpc = free_ports(4)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "store": str(folder / "store"), "run_dir": str(folder / "run"), "ready_timeout_s": 90
        },
        "worker": {"pages": 4, "workspace_bytes": 64 << 20},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
            "grpc_address": f"grpc://127.0.0.1:{grpc}",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }  # fmt: skip
    with LocalCluster(make_plan(read_config(tables, "the test")), lambda _: None) as cluster:
        yield Site(cluster.address, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")


@pytest.fixture(scope="module")
def stock(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(folder / f"{MODEL}.onnx")


def drawn(random: np.random.Generator, rows: int, length: int | None = None) -> dict[str, Any]:
    time = int(random.integers(1, LONGEST + 1)) if length is None else length
    x = random.standard_normal((time, rows, FEATURES), np.float32)
    states = {name: random.standard_normal((2, rows, HIDDEN), np.float32) for name in ("h0", "c0")}
    return {"x": x, **states}


def over(library: Any, client: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Ask as Triton's clients do."""
    tensors = []
    for name, array in inputs.items():
        tensor = library.InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    result = client.infer(MODEL, tensors)
    return {name: result.as_numpy(name) for name in ("y", "hN", "cN")}


def same(found: Any, stock: onnxruntime.InferenceSession, inputs: dict[str, Any]) -> None:
    for name, expected in zip(("y", "hN", "cN"), stock.run(None, inputs), strict=True):
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 16])
def test_answers_are_onnx_runtimes_over_every_protocol(
    site: Site, stock: onnxruntime.InferenceSession, rows: int
) -> None:
    inputs = drawn(np.random.default_rng(rows), rows)
    with Client(site.zeromq) as client:
        same(client.infer(MODEL, inputs), stock, inputs)
    for library, address in ((tritonclient.http, site.http), (tritonclient.grpc, site.grpc)):
        client = library.InferenceServerClient(address)
        same(over(library, client, inputs), stock, inputs)
        client.close()


def test_strangers_with_other_rows_share_executions(site: Site, stock: onnxruntime.InferenceSession) -> None:
    barrier = threading.Barrier(STRANGERS)

    def ask(number: int) -> int:
        random, largest = np.random.default_rng(100 + number), 0
        with Client(site.zeromq) as client:
            barrier.wait(WAIT_S)
            for _ in range(ROUNDS):
                # Every second turn all have one length, so that they can share.
                asked = [
                    drawn(random, 1 + (number + each) % 3, 12 if each % 2 else None) for each in range(6)
                ]
                futures = [client.submit(MODEL, inputs, slo_ms=30_000) for inputs in asked]
                for inputs, future in zip(asked, futures, strict=True):
                    result = future.result(timeout=WAIT_S)
                    same(result, stock, inputs)
                    largest = max(largest, result.timing.batch_size - inputs["x"].shape[1])
        return largest

    with ThreadPoolExecutor(STRANGERS) as pool:
        beyond = list(pool.map(ask, range(STRANGERS)))
    assert max(beyond) >= 8, "no execution had the rows of several requests"


def test_requests_that_do_not_fit_are_refused_with_the_axis(site: Site) -> None:
    random = np.random.default_rng(0)
    with Client(site.zeromq) as client:
        with pytest.raises(TooManyRows, match="4097 rows are more"):
            client.infer(MODEL, drawn(random, 4_097))
        inputs = drawn(random, 2)
        inputs["h0"] = inputs["h0"][:, :1]
        with pytest.raises(InvalidInput, match="all inputs of a request have the same number of rows"):
            client.infer(MODEL, inputs)
        with pytest.raises(InvalidInput, match=r"takes \[2, rows, 4\]"):
            client.infer(MODEL, {**drawn(random, 2), "h0": np.zeros((3, 2, HIDDEN), np.float32)})


def test_highest_values_are_those_of_each_row(site: Site, stock: onnxruntime.InferenceSession) -> None:
    inputs = drawn(np.random.default_rng(3), 3, 4)
    client = tritonclient.http.InferenceServerClient(site.http)
    tensors = []
    for name, array in inputs.items():
        tensor = tritonclient.http.InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    output = tritonclient.http.InferRequestedOutput("hN", class_count=1)
    found = client.infer(MODEL, tensors, outputs=[output]).as_numpy("hN")
    client.close()
    expected = np.moveaxis(stock.run(["hN"], inputs)[0], 1, 0).reshape(3, -1)
    assert [int(each[0].split(b":")[1]) for each in found] == expected.argmax(axis=1).tolist()
