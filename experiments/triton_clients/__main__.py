"""``python -m mainspring.experiments.triton_clients FOLDER``: Triton's example clients, as they are.

``FOLDER`` has the files of ``src/python/examples`` of Triton's repository of clients; none of them is part of
this one. Each is run against a cluster that serves the models that they name, made here, with
``compatibility = "triton"``. A file passes if it ends with exit code 0. Left out are those that need a GPU,
an ensemble, a model that answers more than once, a language model's server, or the address localhost:8000.
Those that unload a model come last: over HTTP they count seven models in the repository, over gRPC eight.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.repository import RepositoryClient

COLUMNS = 16
CLASSES = 1_000
KINDS: Mapping[str, tuple[int, str]] = {
    "uint8": (TensorProto.UINT8, "TYPE_UINT8"),
    "int8": (TensorProto.INT8, "TYPE_INT8"),
    "int16": (TensorProto.INT16, "TYPE_INT16"),
    "int32": (TensorProto.INT32, "TYPE_INT32"),
    "int64": (TensorProto.INT64, "TYPE_INT64"),
    "float16": (TensorProto.FLOAT16, "TYPE_FP16"),
    "float32": (TensorProto.FLOAT, "TYPE_FP32"),
    "object": (TensorProto.STRING, "TYPE_STRING"),
}
"""Element types of ONNX and of configurations, by numpy's names."""
_AS_INT32 = frozenset({"object", "int8", "int16", "uint8"})
LABELS = "labels.txt"
EIGHTH = "simple_dyna_sequence"
"""The model that the repository lacks when it is counted over HTTP; nothing asks it."""
_BOTH = ("0", "1")
_FLAG = "control {{ kind: CONTROL_SEQUENCE_{} int32_false_true: [0, 1] }}"


def add_and_subtract(given: str, sum_as: str, difference_as: str, *, rows: bool = True) -> onnx.ModelProto:
    """Return a model of two inputs and their sum and difference; texts are numbers, written out."""
    inner = "int32" if given in _AS_INT32 else given
    nodes = [_cast(f"INPUT{each}", f"in{each}", given, inner) for each in _BOTH]
    nodes += [
        helper.make_node(kind, ["in0", "in1"], [f"r{each}"])
        for each, kind in zip(_BOTH, ("Add", "Sub"), strict=True)
    ]
    if given == "uint8":
        # Numbers without a sign wrap around before they become others.
        nodes += [_cast(f"r{each}", f"w{each}", inner, given) for each in _BOTH]
        nodes += [
            _cast(f"w{each}", f"OUTPUT{each}", given, kind)
            for each, kind in zip(_BOTH, (sum_as, difference_as), strict=True)
        ]
    else:
        nodes += [
            _cast(f"r{each}", f"OUTPUT{each}", inner, kind)
            for each, kind in zip(_BOTH, (sum_as, difference_as), strict=True)
        ]
    shape: list[str | int] = ["rows", COLUMNS] if rows else [COLUMNS]
    inputs = {f"INPUT{each}": (given, shape) for each in _BOTH}
    return _model(nodes, inputs, {"OUTPUT0": (sum_as, shape), "OUTPUT1": (difference_as, shape)})


def configured(given: str, sum_as: str, difference_as: str, *, rows: bool = True) -> str:
    """Return the configuration of such a model, with names of the sum's classes."""
    inputs = " ".join(_tensor("input", f"INPUT{each}", given, COLUMNS) for each in _BOTH)
    first = _tensor("output", "OUTPUT0", sum_as, COLUMNS, f'label_filename: "{LABELS}"')
    second = _tensor("output", "OUTPUT1", difference_as, COLUMNS)
    return f"max_batch_size: {8 if rows else 0} {inputs} {first} {second}"


def lay_examples(root: Path) -> None:
    """Write the models of Triton's example clients."""
    for name, kind in (("simple", "int32"), ("simple_int8", "int8"), ("simple_string", "object")):
        put(root, name, add_and_subtract(kind, kind, kind), configured(kind, kind, kind))
    for name, kind in (("simple_identity", "object"), ("custom_identity_int32", "int32")):
        shape = ["rows", "length"]
        same = [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]
        text = f"{_tensor('input', 'INPUT0', kind, -1)} {_tensor('output', 'OUTPUT0', kind, -1)}"
        put(
            root,
            name,
            _model(same, {"INPUT0": (kind, shape)}, {"OUTPUT0": (kind, shape)}),
            f"max_batch_size: 8 {text}",
        )
    nodes = [helper.make_node("Mul", ["START", "READY"], ["begun"])]
    nodes.append(helper.make_node("Add", ["INPUT", "begun"], ["OUTPUT"]))
    number: tuple[str, Sequence[str | int]] = ("int32", ["rows", 1])
    controls = " ".join(
        f'control_input {{ name: "{each}" {_FLAG.format(each)} }}' for each in ("START", "READY")
    )
    put(
        root,
        "simple_sequence",
        _model(nodes, dict.fromkeys(("INPUT", "START", "READY"), number), {"OUTPUT": number}),
        f"max_batch_size: 8 sequence_batching {{ {controls} }} "
        f"{_tensor('input', 'INPUT', 'int32', 1)} {_tensor('output', 'OUTPUT', 'int32', 1)}",
    )
    kernel = np.random.default_rng(0).standard_normal((CLASSES, 3, 3, 3)).astype(np.float32)
    seen = [helper.make_node("Conv", ["data_0", "w"], ["seen"], strides=[8, 8])]
    seen.append(helper.make_node("GlobalAveragePool", ["seen"], ["fc6_1"]))
    image, found = ("float32", [1, 3, 224, 224]), ("float32", [1, CLASSES, 1, 1])
    put(
        root,
        "densenet_onnx",
        _model(seen, {"data_0": image}, {"fc6_1": found}, w=kernel),
        'max_batch_size: 0 input { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW '
        "dims: [3, 224, 224] reshape { shape: [1, 3, 224, 224] } } "
        f'output {{ name: "fc6_1" data_type: TYPE_FP32 dims: [{CLASSES}] label_filename: "{LABELS}" '
        f"reshape {{ shape: [1, {CLASSES}, 1, 1] }} }}",
    )


def put(root: Path, name: str, model: onnx.ModelProto, config: str) -> None:
    """Write a model with its configuration and names of classes."""
    folder = root / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "config.pbtxt").write_text(config)
    (folder / LABELS).write_text("".join(f"label{index}\n" for index in range(CLASSES)))


def _tensor(side: str, name: str, kind: str, size: int, more: str = "") -> str:
    return f'{side} {{ name: "{name}" data_type: {KINDS[kind][1]} dims: [{size}] {more} }}'


def _cast(source: str, target: str, kind: str, wanted: str) -> onnx.NodeProto:
    if kind == wanted:
        return helper.make_node("Identity", [source], [target])
    return helper.make_node("Cast", [source], [target], to=KINDS[wanted][0])


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[str | int]]],
    outputs: Mapping[str, tuple[str, Sequence[str | int]]],
    **weights: Any,
) -> onnx.ModelProto:
    given, found = (
        [helper.make_tensor_value_info(name, KINDS[kind][0], shape) for name, (kind, shape) in each.items()]
        for each in (inputs, outputs)
    )
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", given, found, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LONGEST_S = 120.0
START_S = 1_200.0
"""Longest time until the models are compiled, on a machine with other work."""
_LEFT_OUT = ("cudashm", "ensemble", "custom_repeat", "vllm", "memory_growth")
_UNLOADS = "model_control"


class Site(NamedTuple):
    """Address of a cluster, as Triton's clients take it."""

    http: str
    grpc: str
    repository: Path


class Outcome(NamedTuple):
    """Outcome of a file."""

    name: str
    passed: bool
    last: str
    """The last line that it wrote."""


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve the models of the examples, made in ``folder``."""
    repository = folder / "repository"
    repository.mkdir()
    lay_examples(repository)
    gateway, controller, control, http, rpc = free_ports(5)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"run_dir": str(folder / "run"), "ready_timeout_s": START_S},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
            "grpc_address": f"grpc://127.0.0.1:{rpc}",
            "compatibility": "triton",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "repository": {
            "path": str(repository),
            "address": f"tcp://127.0.0.1:{control}",
            "mode": "explicit",
            "load_models": ["*"],
            "compile_timeout_s": START_S,
        },
    }
    plan = make_plan(read_config(tables, "the experiment"))
    with LocalCluster(plan, lambda said: print(said, file=sys.stderr)):
        yield Site(f"127.0.0.1:{http}", f"127.0.0.1:{rpc}", repository)


def arguments(name: str, site: Site, folder: Path) -> list[str]:
    """Return what a file of this name is run with."""
    if "image_client" in name:
        from PIL import Image

        picture = folder / "picture.png"
        Image.new("RGB", (64, 48), (200, 30, 90)).save(picture)
        address = site.grpc if name.startswith("grpc") else site.http
        return ["-m", "densenet_onnx", "-c", "3", "-u", address, str(picture)]
    return ["-u", site.grpc if "grpc" in name else site.http]


def place(name: str) -> tuple[bool, bool, str]:
    """Return what puts files in the order in which they are run."""
    return _UNLOADS in name, _UNLOADS in name and "grpc" in name, name


def run(file: Path, site: Site, folder: Path) -> Outcome:
    """Run one file."""
    if _UNLOADS in file.name and "grpc" in file.name and not (site.repository / EIGHTH).exists():
        put(site.repository, EIGHTH, add_and_subtract("int32", "int32", "int32"), "")
        give_up = time.monotonic() + LONGEST_S
        index = RepositoryClient(f"http://{site.http}").index
        while time.monotonic() < give_up and all(each.name != EIGHTH for each in index()):
            time.sleep(0.2)
    command = [sys.executable, str(file), *arguments(file.name, site, folder)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LONGEST_S, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return Outcome(file.name, False, f"it took longer than {LONGEST_S:g} s")
    lines = (done.stdout + done.stderr).strip().splitlines()
    return Outcome(file.name, done.returncode == 0, lines[-1][:300] if lines else "")


def main(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Files of src/python/examples.")
    ],
) -> None:
    """Run Triton's example clients against a cluster, and print what became of each."""
    files = [each for each in folder.glob("*.py") if not any(word in each.name for word in _LEFT_OUT)]
    files.sort(key=lambda each: place(each.name))
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch)) as site:
        outcomes = [run(file, site, Path(scratch)) for file in files]
    for each in outcomes:
        print(f"{'pass' if each.passed else 'FAIL'}  {each.name}  {each.last}")
    passed = sum(each.passed for each in outcomes)
    print(f"{passed} of {len(outcomes)} pass")
    raise typer.Exit(int(passed < len(outcomes)))


if __name__ == "__main__":
    typer.run(main)
