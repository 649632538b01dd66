"""Gain from serving each length as it is: MiniLM with its length open beside MiniLM of one length.

Requests are sentences of a real text, one row each, over gRPC to one worker on one core. Beside the model
with its length open stand two of a fixed one: the longest, to which clients would pad every sentence, and the
median, whose INFERs should be no easier to predict. Sides take turns, so that what else the machine does is
borne by all; the figures are ratios of one run. At the end random lengths are asked for while the worker's
memory is watched: nothing may be allocated in serving beyond the workspace that was measured at compilation.
``python -m mainspring.experiments.bench.lengths``, which ``make bench-lengths`` runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import psutil
import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.foreign import Unavailable
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.triton import load
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.log import read_log

OPEN, LONGEST, MEDIAN = "minilm", "minilm-longest", "minilm-median"
"""The sides, which are called as their models are."""
FACTORS = (1.0, 1.5)
"""Rates, as parts of what the open model answers in a closed loop."""
STEADY = 0.5
"""The rate at which predictions are judged, as a part of each side's own saturation."""
GAIN = 1.3
ERROR_RATIO = 1.5
COMPILE_S = 60.0
GROWN_MB = 4.0
_CLIENTS = 8
_PAGES = 32
_REQUESTS = 2_000
"""Different requests of a side; they come in turn and over again."""


class Turn(msgspec.Struct, frozen=True):
    """One side at one rate for one turn."""

    side: str
    factor: float
    rate_hz: float
    requests: int
    in_time: int
    codes: dict[str, int]
    client_late_ms: float
    begin_ns: int
    end_ns: int


class Memory(msgspec.Struct, frozen=True):
    """The worker's resident memory, in bytes."""

    ready: int
    """Once all models are resident and have answered."""
    most: int
    end: int
    requests: int


class Contest:
    """One cluster with the three models."""

    def __init__(self, address: str, pid: int, median: int, slo_ms: float) -> None:
        """``median`` is the length of the side `MEDIAN`."""
        self._address, self._pid, self._slo_ms = address, pid, slo_ms
        sentences = minilm.drawn(_REQUESTS, seed=0)
        lengths = {OPEN: 0, LONGEST: minilm.LONGEST, MEDIAN: median}
        self._timed: dict[str, list[bytes]] = {}
        self._untimed: dict[str, list[bytes]] = {}
        for side, length in lengths.items():
            inputs = [minilm.tensors(ids, length) for ids in sentences]
            self._timed[side] = [load.encode(side, each, round(slo_ms * 1e3)) for each in inputs]
            self._untimed[side] = [load.encode(side, each) for each in inputs]
        self.saturation_hz: dict[str, float] = {}

    def saturate(self, seconds: float, repeats: int) -> None:
        """Find each side's answers a second in a closed loop: medians of turns, after a first that warms."""
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats + 1):
            for side in self._untimed:
                found[side].append(self._closed(self._untimed[side], seconds))
        self.saturation_hz = {side: statistics.median(each[1:]) for side, each in found.items()}

    def turn(self, side: str, factor: float, seconds: float, seed: int) -> Turn:
        """Send Poisson arrivals to one side, at ``factor`` as `Turn.factor` has it."""
        rate_hz = factor * self.saturation_hz[OPEN] if factor else STEADY * self.saturation_hz[side]
        instants = load.poisson(rate_hz, seconds, seed)
        begin_ns = time.monotonic_ns()
        found = load.open_loop(self._address, self._timed[side], instants)
        return Turn(
            side=side,
            factor=factor,
            rate_hz=rate_hz,
            requests=len(instants),
            in_time=found.in_time(self._slo_ms),
            codes=found.codes,
            client_late_ms=found.late_ms,
            begin_ns=begin_ns,
            end_ns=time.monotonic_ns(),
        )

    def memory(self, requests: int) -> Memory:
        """Ask for random lengths, all equally often, and watch the worker's memory."""
        rng = np.random.default_rng(2)
        drawn = [
            load.encode(OPEN, minilm.tensors(np.full(int(length), 1_000), 0))
            for length in rng.integers(1, minilm.LONGEST + 1, size=requests)
        ]
        process = psutil.Process(self._pid)
        readings = [process.memory_info().rss]
        seconds = 2.0
        sent = 0
        while sent < requests:
            sent += max(1, round(seconds * self._closed(drawn[sent:], seconds)))
            readings.append(process.memory_info().rss)
        return Memory(readings[0], max(readings), readings[-1], sent)

    def _closed(self, requests: Sequence[bytes], seconds: float) -> float:
        return load.closed_loop(self._address, requests, _CLIENTS, seconds)


@contextmanager
def contest(folder: Path, specs: Mapping[str, ModelSpec], slo_ms: float) -> Iterator[Contest]:
    """Run a cluster on the store in ``folder``."""
    gateway, controller, grpc = free_ports(3)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(folder / "store"), "run_dir": str(folder / "run")},
        "worker": {"pages": _PAGES},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": "",
            "grpc_address": f"grpc://127.0.0.1:{grpc}",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    with LocalCluster(make_plan(read_config(tables, "this benchmark")), typer.echo) as cluster:
        pid = cluster.supervisor.pid("worker-0")
        assert pid is not None, "the worker serves"
        yield Contest(f"127.0.0.1:{grpc}", pid, specs[MEDIAN].inputs[0].shape[0], slo_ms)


def compiled(folder: Path, *, pads: bool) -> tuple[dict[str, ModelSpec], float]:
    """Compile the three models; return them, and how long the open one took in seconds.

    ``pads``: whether its requests of one bucket may share an execution.
    """
    file, store = minilm.model_file(), Store(folder / "store")
    begin = time.perf_counter()
    most, pad = {minilm.SYMBOL: minilm.LONGEST}, minilm.PAD if pads else {}
    specs = {OPEN: compile_file(file, OPEN, store, most=most, pad=pad).manifest.spec()}
    seconds = time.perf_counter() - begin
    for side, length in ((LONGEST, minilm.LONGEST), (MEDIAN, minilm.median_length(minilm.sentences()))):
        shapes = dict.fromkeys(minilm.INPUTS, (1, length))
        specs[side] = compile_file(file, side, store, shapes=shapes).manifest.spec()
    return specs, seconds


class Error(msgspec.Struct, frozen=True):
    """99th percentile of the difference between predicted and measured INFERs."""

    ms: float
    percent: float
    infers: int


def errors(run_dir: Path, turns: Sequence[Turn]) -> dict[str, Error]:
    """Return each side's prediction error in its steady turns, from the event log of a cluster that ended."""
    spans = [(turn.begin_ns, turn.end_ns) for turn in turns if not turn.factor]
    sent: dict[int, Infer] = {}
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for now_ns, entry in read_log(run_dir / "events"):
        if isinstance(entry, Infer):
            if any(begin_ns <= now_ns <= end_ns for begin_ns, end_ns in spans):
                sent[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.action_id in sent and entry.status is Status.OK:
            infer = sent.pop(entry.action_id)
            taken_ns = entry.end_ns - entry.begin_ns
            found[infer.model].append((abs(taken_ns - infer.predicted_duration_ns), taken_ns))
    return {side: _error(np.array(each, np.float64)) for side, each in found.items()}


def _error(pairs: np.ndarray[Any, np.dtype[np.float64]]) -> Error:
    parts = pairs[:, 0] / np.maximum(pairs[:, 1], 1)
    ms, percent = np.percentile(pairs[:, 0], 99) / 1e6, 100 * np.percentile(parts, 99)
    return Error(float(ms), float(percent), len(pairs))


def figures(
    turns: Sequence[Turn],
    found: Mapping[str, Error],
    saturation_hz: Mapping[str, float],
    compile_s: float,
) -> list[Figure]:
    """Return the rows of the report about what was served."""
    made = [Figure("compilation of all buckets", compile_s, "s", COMPILE_S)]
    made += [Figure(f"{side}: saturation", hz, "r/s") for side, hz in saturation_hz.items()]
    for side, error in found.items():
        note = f"{error.percent:.1f} % of what it took; of {error.infers} INFERs"
        made.append(Figure(f"{side}: prediction error, p99", error.ms, "ms", note=note))
    if {OPEN, MEDIAN} <= {*found}:
        ours, fixed = found[OPEN], found[MEDIAN]
        ratio = ours.ms / max(fixed.ms, 1e-6)
        made.append(Figure("prediction error, p99: open over fixed", ratio, "x", ERROR_RATIO))
        ratio = ours.percent / max(fixed.percent, 1e-6)
        made.append(Figure("the same as parts of what was taken", ratio, "x"))
    for factor in sorted({turn.factor for turn in turns} - {0.0}):
        goodput: dict[str, float] = {}
        for side in (OPEN, LONGEST):
            parts = [
                turn.in_time / turn.requests for turn in turns if (turn.side, turn.factor) == (side, factor)
            ]
            goodput[side] = 100 * statistics.median(parts)
            spread = f"{100 * min(parts):.1f} to {100 * max(parts):.1f} of {len(parts)} turns"
            made.append(Figure(f"{factor:g} x: {side} in time", goodput[side], "%", note=spread))
        ratio = goodput[OPEN] / max(goodput[LONGEST], 0.1)
        made.append(Figure(f"{factor:g} x: goodput, open over padded", ratio, "x", GAIN, at_least=True))
    return made


def memory_figures(memory: Memory, workspace_bytes: int) -> list[Figure]:
    """Return the rows about memory; ``workspace_bytes`` is what was measured at compilation."""
    grown = memory.end - memory.ready
    most = (memory.most - memory.ready) / 1e6
    note = f"over {memory.requests} requests of random lengths; {most:.1f} MB at most"
    return [
        Figure("worker's memory grown while serving", grown / 1e6, "MB", GROWN_MB, note=note),
        Figure("workspace measured at compilation", workspace_bytes / 1e6, "MB"),
    ]


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each side at each rate.")] = 5,
    turn_s: Annotated[float, typer.Option(help="Length of a turn.")] = 4.0,
    slo_ms: Annotated[float, typer.Option(help="Of every request.")] = 100.0,
    random_lengths: Annotated[int, typer.Option(help="Requests while memory is watched.")] = 3_000,
    pads: Annotated[bool, typer.Option(help="Let requests of one bucket share executions.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        folder = Path(name)
        try:
            specs, compile_s = compiled(folder, pads=pads)
        except Unavailable as why:
            typer.echo(f"skipped: {why}")
            return
        turns: list[Turn] = []
        with contest(folder, specs, slo_ms) as sides:
            sides.saturate(turn_s / 2, repeats)
            for repeat in range(repeats):
                order = 1 if repeat % 2 else -1
                turns += [sides.turn(each, 0.0, turn_s, repeat) for each in (OPEN, MEDIAN)[::order]]
                for factor in FACTORS:
                    turns += [sides.turn(each, factor, turn_s, repeat) for each in (OPEN, LONGEST)[::order]]
            memory = sides.memory(random_lengths)
        found = errors(folder / "run", turns)
    rows = figures(turns, found, sides.saturation_hz, compile_s)
    rows += memory_figures(memory, specs[OPEN].workspace_bytes)
    publish("lengths", "MiniLM at the lengths of a text's sentences", rows, output, turns=turns)


if __name__ == "__main__":
    typer.run(main)
