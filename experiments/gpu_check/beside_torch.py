"""Are the kernels worth a GPU? The main model beside ResNet-50 by torch and cuDNN, in turns, by precision.

Ours are all models of the store that were compiled from the main model's architecture, by the precision in
their manifests. Torch's network has weights of its own and, as ours, no normalisation beside its
convolutions; it is captured in a CUDA graph after cuDNN has chosen among its kernels by time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, device_for, random_rows
from mainspring.compiler.artifact.manifest import FP16, FP32, PRECISIONS, TF32, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.outputs import farthest
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told

ARCHITECTURE = "resnet50"
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
SMALLEST_MS = 2.5
TIMES_TORCH = 2.0
WARM_UPS = 3
DEVICE_PART = "the device's part, medians in turns"

Run = Callable[[], int]
"""Runs a batch and returns what that took on the device in ns."""


def check_beside_torch(settings: Settings) -> Iterator[Verdict]:
    """Measure the smallest and the largest batch size."""
    ours = by_precision(Store(settings.store(settings.engine)).manifests(), settings)
    specs = {precision: manifest.spec() for precision, manifest in ours.items()}
    reason = missing(settings)
    if reason:
        yield not_run("torch and cuDNN beside ours", reason)
    with device_for(list(specs.values()), settings.config(), copies=len(specs)) as device:
        page = 0
        for spec in specs.values():
            device.prepare(spec)
            device.load(spec, page)
            page += spec.pages
        for size in sizes_of(settings):
            yield from outputs_of(device, ours, size)
            own = {name: run_of(device, manifest, size) for name, manifest in ours.items()}
            theirs = {} if reason else torch_runs(size, settings)
            medians = in_turns({**own, **{f"torch {name}": run for name, run in theirs.items()}}, settings)
            yield from verdicts(settings, size, medians)


def by_precision(manifests: Sequence[Manifest], settings: Settings) -> dict[str, Manifest]:
    """Return the main model, and one of its architecture for each other precision."""
    main = next(manifest for manifest in manifests if manifest.name == settings.main)
    found = {main.precision: main}
    for manifest in manifests:
        if manifest.source.path == main.source.path and {*sizes_of(settings)} <= {*manifest.batch_sizes}:
            found.setdefault(manifest.precision, manifest)
    return found


def sizes_of(settings: Settings) -> tuple[int, ...]:
    """Return the batch sizes that are measured: the smallest and the largest."""
    return tuple(dict.fromkeys((settings.batch_sizes[0], settings.batch_sizes[-1])))


def outputs_of(device: LoneDevice, ours: Mapping[str, Manifest], size: int) -> Iterator[Verdict]:
    """Judge each precision's outputs for a batch by the main model's, by the tolerance of that precision."""
    main, *others = ours.values()
    spec = main.spec()
    rows = random_rows(spec, size)
    expected = device.run(spec, size, rows)
    for other in others:
        found = device.run(other.spec(), size, rows)
        off = farthest(found, expected, other.precision)
        what = f"outputs of {main.name}, batch {size}, {other.precision}: off from {main.precision}'s"
        yield at_most(what, off, 1, "tolerances")


def run_of(device: LoneDevice, manifest: Manifest, size: int) -> Run:
    """Return what runs a batch of a resident model of ours."""
    spec = manifest.spec()
    device.fill(spec, size, random_rows(spec, size))
    return device.infer(spec, size)


def in_turns(runs: Mapping[str, Run], settings: Settings) -> dict[str, float]:
    """Return each one's median in ns, all taken in turns."""
    taken: dict[str, list[int]] = {name: [] for name in runs}
    for _ in range(WARM_UPS + settings.torch_rounds):
        for name, run in runs.items():
            taken[name].append(run())
    return {name: float(np.median(durations[WARM_UPS:])) for name, durations in taken.items()}


def verdicts(settings: Settings, size: int, medians: Mapping[str, float]) -> list[Verdict]:
    """Judge one batch size; torch's medians have ``torch`` before their precisions."""
    found = []
    ours = {name: ns for name, ns in medians.items() if name in PRECISIONS}
    for name, ns in ours.items():
        what = f"EXEC {settings.main}, batch {size}, {name}"
        if (size, name) == (1, FP32):
            found.append(at_most(what, ns / 1e6, SMALLEST_MS, "ms", DEVICE_PART))
        else:
            found.append(told(what, f"{ns / 1e6:.4f} ms", DEVICE_PART))
    for name in PRECISIONS:
        theirs = medians.get(f"torch {name}")
        if theirs is None:
            continue
        against = name if name in ours else FP32
        ratio = ours[against] / theirs
        if name == FP16 == against and size == settings.batch_sizes[-1]:
            what = f"EXEC {settings.main}, batch {size}, {name}: times torch's"
            found.append(at_most(what, ratio, TIMES_TORCH, "times"))
        note = f"ours at {against} takes {ratio:.2f} times that"
        found.append(told(f"  torch and cuDNN, batch {size}, {name}", f"{theirs / 1e6:.4f} ms", note))
    return found


def missing(settings: Settings) -> str:
    """Return why torch can't be measured here; nothing if it can."""
    if settings.rehearsed:
        return "a rehearsal has no GPU for it"
    if settings.main != ARCHITECTURE:
        return f"its network here is {ARCHITECTURE}, and the model is {settings.main}"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return f"torch is not installed here ({error})"
    return "" if torch.cuda.is_available() else "torch finds no GPU"


def torch_runs(size: int, settings: Settings) -> dict[str, Run]:
    """Return what runs a batch of torch's network, by precision."""
    torch: Any = importlib.import_module("torch")
    torch.cuda.set_device(settings.config().cuda_device)
    torch.backends.cudnn.benchmark = True
    return {precision: graph_of(torch, size, precision) for precision in PRECISIONS}


def graph_of(torch: Any, size: int, precision: str) -> Run:
    """Return what launches torch's network as a CUDA graph, timed by events around it."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == TF32
    where = {"device": "cuda", "dtype": torch.float16 if precision == FP16 else torch.float32}
    with torch.inference_mode():
        forward, x = network(torch, where), torch.randn(size, 3, 224, 224, **where)
        x = x.contiguous(memory_format=torch.channels_last)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                forward(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = forward(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> int:
        with torch.cuda.stream(stream):
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return round(1e6 * float(begin.elapsed_time(end)))

    # The graph reads and writes their memory for as long as it is launched.
    run.keeps = x, kept, forward  # type: ignore[attr-defined]
    return run


def network(torch: Any, where: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return ResNet-50 with random weights; ``where`` are the device and the type of its numbers."""

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
        made = torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, **where)
        return made.to(memory_format=torch.channels_last)

    stem, channels, blocks = convolution(3, 64, 7, 2), 64, []
    for width, count, first in STAGES:
        for number in range(count):
            stride = 1 if number else first
            main = (
                convolution(channels, width, 1),
                convolution(width, width, 3, stride),
                convolution(width, 4 * width, 1),
            )
            blocks.append((main, None if number else convolution(channels, 4 * width, 1, stride)))
            channels = 4 * width
    head = torch.nn.Linear(channels, 1_000, **where)

    def forward(x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.relu(stem(x)), 3, 2, 1)
        for (reduce, spread, expand), side in blocks:
            y = expand(torch.relu(spread(torch.relu(reduce(x)))))
            x = torch.relu(y + (x if side is None else side(x)))
        return head(x.mean((2, 3)))

    return forward
