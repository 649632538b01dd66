"""The servers that are compared: Triton and Mainspring, also with other settings, all running at once.

They take turns, so each is idle while another is measured.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.profiling.lone_device import as_exec_thread
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import build, compile_zoo
from mainspring.experiments.bench.foreign import CACHE
from mainspring.experiments.bench.triton import server
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

Floats = npt.NDArray[np.float64]
Inputs = Mapping[str, npt.NDArray[Any]]
"""The tensors of a request, by name."""

REST_S = 0.004


def runner(model: onnx.ModelProto, requests: Sequence[Inputs]) -> Callable[[float], Floats]:
    """Return what runs the requests in turn for so many seconds, one by one, and returns durations in ms."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    turns = itertools.cycle(requests)
    rights = Rights(realtime=True)

    def run(seconds: float) -> Floats:
        return as_exec_thread(rights, lambda: _durations_ms(lambda: session.run(None, next(turns)), seconds))

    run(0.0)
    return run


def _durations_ms(function: Callable[[], object], seconds: float) -> Floats:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        time.sleep(REST_S)
        begin = time.perf_counter()
        function()
        found.append((time.perf_counter() - begin) * 1e3)
    return np.array(found)


def in_time_percent(
    instants_s: Floats, durations_ms: Floats, deadline_ms: float, beside_ms: float, seed: int = 0
) -> float:
    """Return the percentage of arrivals that one core answers in time, one by one and in their order.

    Each takes one of ``durations_ms``, drawn with ``seed`` and known before; what would be late is not begun.
    ``beside_ms`` of a request's time pass around its execution, half of them before it.
    """
    drawn = np.random.default_rng(seed).choice(durations_ms, len(instants_s))
    free_ms = 0.0
    answered = 0
    for due_ms, duration_ms in zip(instants_s * 1e3, drawn, strict=True):
        end_ms = max(due_ms + beside_ms / 2, free_ms) + duration_ms
        if end_ms + beside_ms / 2 <= due_ms + deadline_ms:
            free_ms = end_ms
            answered += 1
    return 100 * answered / len(instants_s)


STORE = CACHE / "triton-store"
MOST_COPIES = 8
_SEED = 1


class Subject(msgspec.Struct, frozen=True):
    """A model that is compared."""

    specs: Callable[[Path, int], list[ModelSpec]]
    """Returns so many copies in the store at a path, compiled unless they are there."""
    models: Callable[[Sequence[ModelSpec]], dict[str, onnx.ModelProto]]
    """Returns the ONNX model of each copy, by its name."""
    inputs: Callable[[], list[Inputs]]
    """Returns the tensors of the requests, which come in turn and over again."""
    deadline_ms: float
    wanted: dict[float, float]


def squeezenet() -> Subject:
    """An image classifier of one fixed shape."""

    def specs(store: Path, copies: int) -> list[ModelSpec]:
        compiled = list(compile_zoo(["squeezenet"], Store(store), MOST_COPIES))
        return [each.manifest.spec() for each in compiled][:copies]

    def models(chosen: Sequence[ModelSpec]) -> dict[str, onnx.ModelProto]:
        return {spec.name: build("squeezenet", seed) for seed, spec in enumerate(chosen)}

    def inputs() -> list[Inputs]:
        model = build("squeezenet", 0)
        (taken,) = model.graph.input
        shape = [dim.dim_value for dim in taken.type.tensor_type.shape.dim[1:]]
        image = np.random.default_rng(_SEED).random((1, *shape)).astype(np.float32)
        return [{taken.name: image}]

    return Subject(specs, models, inputs, 25.0, {0.5: 99.5, 0.8: 99.0, 1.0: 97.0, 1.5: 75.0})


TRITON, MAINSPRING = "triton", "mainspring"
BESIDE = "A further Mainspring with settings, such as scheduler.response_margin_ms=1; again for more."


class Wanted(NamedTuple):
    """A server that takes part in the comparison."""

    one_core: bool = False
    beside: Sequence[str] = ()
    """Settings of a further Mainspring each, such as ``scheduler.estimate_rank=5``."""


def wanted_of(one_core: bool, beside: Sequence[str]) -> Wanted:
    """Return who takes part; raise BadParameter for what can't be."""
    if one_core and len(os.sched_getaffinity(0)) < 2:
        raise typer.BadParameter("--one-core needs a second core for the client; this process may use one")
    for text in beside:
        settings(text)
    return Wanted(one_core, beside)


def settings(text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of settings as ``table.key=value``, several separated by commas; raise BadParameter.

    Values are TOML's.
    """
    tables: dict[str, dict[str, Any]] = {}
    for each in filter(None, text.split(",")):
        name, equals, value = each.partition("=")
        table, dot, key = name.strip().partition(".")
        try:
            found = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found = value
        if not (equals and dot and key):
            raise typer.BadParameter(
                f"{each!r} is not a setting; one is TABLE.KEY=VALUE", param_hint="--beside"
            )
        tables.setdefault(table, {})[key] = found
    return tables


@contextmanager
def on_last_core() -> Iterator[Callable[[], None]]:
    """Keep this thread, and what it starts, on the last core; yield what moves this thread to the others.

    Processes and threads inherit it, and a cluster is planned for the cores that its launcher may use.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    try:
        yield lambda: os.sched_setaffinity(0, cores[:-1])
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def servers(
    subject: Subject, copies: int, batch: int, wanted: Wanted
) -> Iterator[tuple[dict[str, str], list[ModelSpec]]]:
    """Run all of them; yield where each serves gRPC, and the models. Raises `Unavailable` without Triton.

    If all are on one core, this thread has the others from the yield on.
    """
    specs = subject.specs(STORE, copies)
    with ExitStack() as stack:
        leave = stack.enter_context(on_last_core()) if wanted.one_core else (lambda: None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = subject.models(specs)
        server.write_repository(folder / "models", models, specs[0], batch)
        addresses = {TRITON: stack.enter_context(server.triton(folder / "models", folder / "triton.log"))}
        for number, text in enumerate(["", *wanted.beside]):
            name = f"{MAINSPRING}, {text}" if text else MAINSPRING
            cluster = stack.enter_context(_cluster(folder / f"run-{number}", specs, settings(text)))
            addresses[name] = cluster
        leave()
        yield addresses, specs


@contextmanager
def _cluster(run_dir: Path, specs: Sequence[ModelSpec], tables: dict[str, dict[str, Any]]) -> Iterator[str]:
    gateway, controller, port = free_ports(3)
    usual: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(STORE), "run_dir": str(run_dir)},
        "worker": {"pages": MOST_COPIES * max(2, specs[0].pages)},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "grpc_address": f"grpc://127.0.0.1:{port}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    config = {table: usual.get(table, {}) | tables.get(table, {}) for table in {**usual, **tables}}
    plan = make_plan(read_config(config, "this benchmark"))
    with LocalCluster(plan, typer.echo):
        yield f"127.0.0.1:{port}"
