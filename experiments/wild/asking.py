"""Triton's clients of a cluster, over HTTP and gRPC: what it says of a model, and its answers."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

import ml_dtypes
import msgspec
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.wild.drawing import ServedTensor
from mainspring.experiments.wild.files import WildFile
from mainspring.experiments.wild.reference import Arrays
from mainspring.gateway.oip.model_config import ROWS
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.repository.recipe import model_and_version
from mainspring.telemetry.log import read_log

HTTP, JSON, GRPC = "HTTP", "HTTP with JSON", "gRPC"
WAYS = (HTTP, JSON, GRPC)
"""Ways to ask; binary tensors but for the second."""
LONGEST_S = 120.0
JSON_ELEMENTS = 20_000
_REFUSALS = (
    "400",
    "404",
    "413",
    "StatusCode.INVALID_ARGUMENT",
    "StatusCode.NOT_FOUND",
    "StatusCode.OUT_OF_RANGE",
)


class NoAnswer(Exception):
    """The server has no answer; the text says why."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class Described(NamedTuple):
    """A model's description by the server."""

    inputs: tuple[ServedTensor, ...]
    most_rows: int
    """0 if the model has no axis for rows."""
    half: frozenset[str]
    """Outputs of bfloat16, which clients get in 32 bits."""
    parameters: dict[str, str]
    axes: Mapping[str, int] = MappingProxyType({})


class Client:
    """Both of Triton's clients of one gateway. It belongs to the thread that made it."""

    def __init__(self, http: str, grpc: str) -> None:
        """``http`` and ``grpc`` are HOST:PORT."""
        self._http = tritonclient.http.InferenceServerClient(http, network_timeout=LONGEST_S)
        self._grpc = tritonclient.grpc.InferenceServerClient(grpc)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._grpc.close()

    def load(self, model: str) -> None:
        """Have the model served; raise `NoAnswer` with the server's sentence."""
        try:
            # Over gRPC, whose client waits as long as it takes.
            self._grpc.load_model(model)
        except InferenceServerException as error:
            raise NoAnswer(error.message() or str(error), refused=True) from None

    def unload(self, model: str) -> None:
        """Have the model served no more; a model that is not there is well, too."""
        try:
            self._grpc.unload_model(model)
        except InferenceServerException:
            return

    def describe(self, model: str) -> Described:
        """Return what metadata and configuration say; raise `NoAnswer`."""
        try:
            metadata, config = self._http.get_model_metadata(model), self._http.get_model_config(model)
        except InferenceServerException as error:
            raise NoAnswer(str(error), refused=False) from None
        inputs = [
            ServedTensor(each["name"], each["datatype"], tuple(map(int, each["shape"])))
            for each in metadata["inputs"]
        ]
        parameters = {
            name: each.get("string_value", "") for name, each in config.get("parameters", {}).items()
        }
        half = frozenset(each["name"] for each in metadata["outputs"] if each["datatype"] == "BF16")
        most, axes = int(config["max_batch_size"]), {}
        if ROWS in parameters:
            elsewhere = msgspec.json.decode(parameters[ROWS])
            most, axes = elsewhere["most"], elsewhere["axes"]
        return Described(tuple(inputs), most, half, parameters, axes)

    def infer(self, model: str, inputs: Arrays, kinds: Sequence[ServedTensor], way: str) -> Arrays:
        """Return all outputs; raise `NoAnswer`."""
        library = tritonclient.grpc if way == GRPC else tritonclient.http
        given = []
        for kind in kinds:
            array = inputs[kind.name]
            tensor = library.InferInput(kind.name, list(array.shape), kind.datatype)
            # Triton's client refuses to write BF16 as JSON.
            binary = {} if way == GRPC else {"binary_data": way == HTTP or kind.datatype == "BF16"}
            tensor.set_data_from_numpy(_sent(array, kind.datatype), **binary)
            given.append(tensor)
        try:
            if way == GRPC:
                return _outputs(self._grpc.infer(model, given, client_timeout=LONGEST_S))
            outputs = None
            if way == JSON:
                names = [each["name"] for each in self._http.get_model_metadata(model)["outputs"]]
                outputs = [library.InferRequestedOutput(name, binary_data=False) for name in names]
            return _outputs(self._http.infer(model, given, outputs=outputs))
        except InferenceServerException as error:
            raise NoAnswer(error.message() or str(error), refused=error.status() in _REFUSALS) from None
        except OSError as error:
            raise NoAnswer(f"{type(error).__name__}: {error}", refused=False) from None


def ways_of(inputs: Arrays) -> tuple[str, ...]:
    """Return the ways to send these inputs: JSON has no infinities and no 16-bit floats, and is for few."""
    plain = all(
        array.dtype != np.float16 and (array.dtype.kind != "f" or np.isfinite(array).all())
        for array in inputs.values()
    )
    small = sum(array.size for array in inputs.values()) <= JSON_ELEMENTS
    return WAYS if plain and small else (HTTP, GRPC)


def _sent(array: Any, datatype: str) -> Any:
    return array.astype(ml_dtypes.bfloat16) if datatype == "BF16" else array


def _outputs(result: Any) -> Arrays:
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in outputs]
    arrays = {name: result.as_numpy(name) for name in names}
    return {
        name: array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in arrays.items()
    }


RUN = "run"
"""The folder of the cluster's files."""
PAGES = 64
COMPILE_S = 900.0


class Site(NamedTuple):
    """A running cluster."""

    cluster: LocalCluster
    http: str
    grpc: str
    run_dir: Path

    def client(self) -> Client:
        """Return a client for the thread that calls this."""
        return Client(self.http, self.grpc)


@contextmanager
def site(folder: Path, say: Any) -> Iterator[Site]:
    """Run a cluster on the repository ``folder/models``, whose models are served when that is asked for."""
    run_dir = folder / RUN
    shutil.rmtree(run_dir, ignore_errors=True)
    (folder / "models").mkdir(parents=True, exist_ok=True)
    gateway, controller, http, grpc, control = free_ports(5)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"run_dir": str(run_dir)},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
            "grpc_address": f"grpc://127.0.0.1:{grpc}",
            "repository_timeout_ms": COMPILE_S * 1e3,
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "worker": {"pages": PAGES},
        "repository": {
            "path": str(folder / "models"),
            "mode": "explicit",
            "settle_ms": 1.0,
            "compile_timeout_s": COMPILE_S,
            "address": f"tcp://127.0.0.1:{control}",
        },
    }
    with LocalCluster(make_plan(read_config(tables, "this experiment")), say) as cluster:
        yield Site(cluster, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", run_dir)


def lay(file: WildFile, repository: Path) -> None:
    """Put the file into a repository as version 1 of a model, with its external data beside it."""
    version = repository / file.name / "1"
    shutil.rmtree(version.parent, ignore_errors=True)
    version.mkdir(parents=True)
    shutil.copyfile(file.path, version / "model.onnx")
    for data in file.beside:
        shutil.copyfile(data, version / data.name)


class Predicted(NamedTuple):
    """Prediction errors of a model's INFERs."""

    error_p99_ms: float
    """The 99th percentile of the absolute difference between duration and prediction."""
    error_p99_part: float
    """The same over the median duration."""
    spread: float
    """The 99th percentile of the durations over their median, the worst of the batch sizes."""


def predictions(run_dir: Path) -> dict[str, Predicted]:
    """Return how well INFERs were predicted, by model, from the event log of a cluster that has stopped."""
    sent: dict[int, Infer] = {}
    errors: defaultdict[str, list[int]] = defaultdict(list)
    durations: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for _, entry in read_log(run_dir / "events"):
        if isinstance(entry, Infer):
            sent[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.action_id in sent:
            infer = sent.pop(entry.action_id)
            if entry.status is Status.OK:
                taken_ns = entry.end_ns - entry.begin_ns
                model, _ = model_and_version(infer.model)
                errors[model].append(abs(taken_ns - infer.predicted_duration_ns))
                durations[model][infer.batch_size].append(taken_ns)
    return {model: _predicted(errors[model], [*durations[model].values()]) for model in errors}


def _predicted(errors_ns: list[int], durations_ns: list[list[int]]) -> Predicted:
    error_ns = float(np.percentile(errors_ns, 99))
    median_ns = float(np.median(np.concatenate(durations_ns)))
    spreads = [np.percentile(each, 99) / max(1.0, float(np.median(each))) for each in durations_ns]
    return Predicted(error_ns / 1e6, error_ns / max(1.0, median_ns), float(max(spreads)))
