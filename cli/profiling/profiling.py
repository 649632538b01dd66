"""Measures the models of a store on a device: LOAD, and INFER at each batch size (Clockwork, appendix A).

Models that share an executable differ in nothing that takes time, so one of them is measured for all. What is
measured is what the scheduler predicts: an executor's call of the engine, from its begin to its end. Batch
sizes take turns, as they do in serving: an engine may be slower after a batch of another size. Results are a
table of the appendix, as Markdown, or as the CSV that `mainspring.compiler.artifact.profiles` reads.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic_ns

import msgspec
import numpy as np
from rich.table import Table

from mainspring.cli.profiling.lone_device import LoneDevice
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store, check_name
from mainspring.compiler.choosing import durations
from mainspring.compiler.choosing.durations import DISTURBED, Effort, Timing, repeat
from mainspring.messages.model import ModelSpec, Profile, bucket_name
from mainspring.messages.tables import ConfigError


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One executable on one device."""

    models: tuple[str, ...]
    """The models that share it; the first was measured."""
    source: str
    """The zoo's architecture or the ONNX file that it came from."""
    engine: str
    """Engine that it was compiled for and is run by."""
    input_bytes: int
    """Bytes of one row of all inputs."""
    output_bytes: int
    weights_bytes: int
    load: Timing
    """Duration of LOAD from begin to end, as the scheduler learns it."""
    infer: dict[int, Timing]
    """The same, by batch size."""
    load_device: Timing | None = None
    """The device's part of LOAD: its copy."""
    infer_device: dict[int, Timing] = {}
    """The device's part of INFER, by batch size."""
    shaped: dict[str, dict[int, Timing]] = {}
    """INFER by bucket and batch size, in the same way, of a model that runs at its buckets' ceilings alone;
    ``infer`` is at the limits."""

    def profile(self) -> Profile:
        """Return the seed durations."""
        shaped = {bucket: _seeds(timings) for bucket, timings in self.shaped.items()}
        return Profile(_seeds(self.infer), self.load.seed_ns, shaped)


def _seeds(timings: Mapping[int, Timing]) -> dict[int, int]:
    return {size: timing.seed_ns for size, timing in timings.items()}


def by_executable(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """Return the manifests in groups that share executable and length of weights, in their order."""
    groups: dict[tuple[str, int], list[Manifest]] = {}
    for manifest in manifests:
        groups.setdefault((manifest.executable, manifest.weights_bytes), []).append(manifest)
    return list(groups.values())


def chosen_sizes(manifest: Manifest, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return which of the wanted batch sizes, or all if none is wanted, the model has.

    Raises `ConfigError` if it has none of them.
    """
    sizes = tuple(size for size in manifest.batch_sizes if size in wanted or not wanted)
    if not sizes:
        asked, there = (", ".join(map(str, each)) for each in (wanted, manifest.batch_sizes))
        raise ConfigError(f"{manifest.name} was compiled for batch sizes {there}, and none of {asked}")
    return sizes


def measure_models(
    device: LoneDevice,
    groups: Sequence[Sequence[Manifest]],
    batch_sizes: Sequence[int] = (),
    effort: Effort | None = None,
    begun: Callable[[str], None] = lambda _: None,
) -> Iterator[Measured]:
    """Yield what each group's first model takes; ``begun`` gets its name before.

    The device holds one model at a time. Raises what the engine raises, and `ConfigError` of `chosen_sizes`.
    """
    for group in groups:
        first = group[0]
        begun(first.name)
        yield measure(device, group, chosen_sizes(first, batch_sizes), effort or Effort())


def measure(
    device: LoneDevice,
    group: Sequence[Manifest],
    batch_sizes: Sequence[int],
    effort: Effort,
    clock: Callable[[], int] | None = None,
) -> Measured:
    """Measure a group's first model: LOADs that go round in the device's pages, then all batch sizes.

    ``effort`` is for the LOADs, and for each batch size. If the model runs at its buckets' ceilings alone,
    the buckets share as much again. ``clock`` returns nanoseconds, by default the monotonic clock's.
    """
    clock = clock or monotonic_ns
    first = group[0]
    spec = first.spec()
    device.prepare(spec)
    places = _places(device.pages, spec.pages)
    try:
        load = _Spans(clock)
        repeat(lambda: load.take(lambda: device.load(spec, next(places))), effort)
        infer = _infers(device, spec, batch_sizes, effort, clock)
        buckets = spec.buckets if spec.at_ceilings else ()
        few = msgspec.structs.replace(effort, seconds=effort.seconds / max(1, len(buckets)))
        shaped = {
            bucket_name(ceilings): _infers(device, spec, batch_sizes, few, clock, ceilings)
            for ceilings in buckets
        }
    finally:
        device.release(spec)
    return Measured(
        models=tuple(manifest.name for manifest in group),
        source=first.source.path,
        engine=first.engine,
        input_bytes=spec.input_row_bytes,
        output_bytes=spec.output_row_bytes,
        weights_bytes=spec.weights_bytes,
        load=load.whole(effort),
        infer={size: spans.whole(effort) for size, spans in infer.items()},
        load_device=load.device(effort),
        infer_device={size: spans.device(effort) for size, spans in infer.items()},
        shaped={
            bucket: {size: spans.whole(few) for size, spans in each.items()}
            for bucket, each in shaped.items()
        },
    )


class _Spans:
    """Durations of one kind of call: from its begin to its end, and what of that is the device's."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._whole_ns: list[int] = []
        self._device_ns: list[int] = []

    def take(self, run: Callable[[], int]) -> int:
        """Run once; return the duration in ns."""
        begin_ns = self._clock()
        device_ns = run()
        took_ns = self._clock() - begin_ns
        self._whole_ns.append(took_ns)
        self._device_ns.append(device_ns)
        return took_ns

    def whole(self, effort: Effort) -> Timing:
        """Return the timing of the calls behind those to warm up."""
        return Timing.of(np.array(self._whole_ns[effort.warm_up :], np.int64))

    def device(self, effort: Effort) -> Timing:
        """Return the timing of the device's part."""
        return Timing.of(np.array(self._device_ns[effort.warm_up :], np.int64))


def _infers(
    device: LoneDevice,
    spec: ModelSpec,
    sizes: Sequence[int],
    effort: Effort,
    clock: Callable[[], int],
    ceilings: tuple[int, ...] = (),
) -> dict[int, _Spans]:
    """Run the batch sizes in turn, of a model with symbols at these ceilings or at the limits."""
    spans = {size: _Spans(clock) for size in sizes}
    rows = {size: device.rows(spec, size, ceilings) for size in sizes}
    runs = {size: device.infer(spec, size, ceilings) for size in sizes}

    def run_each() -> int:
        took_ns = 0
        for size in sizes:
            # All sizes share the memory of inputs and outputs.
            device.fill(spec, size, rows[size], ceilings)
            took_ns += spans[size].take(runs[size])
        return took_ns

    repeat(run_each, msgspec.structs.replace(effort, seconds=effort.seconds * len(sizes)))
    return spans


def keep(store: Store, measured: Measured, device_kind: str) -> None:
    """Store the profile with every model that it is of; raise `StoreError` if one can't be written.

    What was not measured stays as it was known: other batch sizes, buckets of a model that runs at any sizes
    but the limits, and the spread over values. Where durations follow from values, one request's values were
    measured here and many by the compiler: the longer duration is kept.
    """
    found = measured.profile()
    for name in measured.models:
        manifest = store.manifest(name)
        before = manifest.profiles.get(device_kind, Profile({}, 0))
        measured_ns = found.infer_ns
        if before.spread > DISTURBED:
            measured_ns = {size: max(ns, before.infer_ns.get(size, 0)) for size, ns in measured_ns.items()}
        infer_ns = dict(sorted({**before.infer_ns, **measured_ns}.items()))
        limits = bucket_name(tuple(symbol.limit for symbol in manifest.symbols))
        shaped = {**before.shaped}
        for bucket, known in found.shaped.items():
            shaped[bucket] = dict(sorted({**before.shaped.get(bucket, {}), **known}.items()))
        if shaped:
            shaped[limits] = infer_ns
        profile = msgspec.structs.replace(before, infer_ns=infer_ns, load_ns=found.load_ns, shaped=shaped)
        profiles = {**manifest.profiles, device_kind: profile}
        store.put_manifest(msgspec.structs.replace(manifest, profiles=profiles))


def _places(pages: int, needed: int) -> Iterator[int]:
    """Yield first pages, so that a copy does not find its target in a processor's cache."""
    while True:
        yield from range(0, pages - needed + 1, max(1, needed))


def check_alike(manifests: Sequence[Manifest], name: str) -> None:
    """Raise `ConfigError` unless these could be artifacts of one model that is to be called ``name``."""
    check_name(name)
    if len(manifests) < 2:
        raise ConfigError(
            f"to find the fastest artifact for {name} takes two of them at least: compile the model for each "
            "engine under a name of its own, and name those"
        )
    first = manifests[0]
    for other in manifests[1:]:
        both = f"{first.name} and {other.name}"
        if (first.inputs, first.outputs) != (other.inputs, other.outputs):
            raise ConfigError(
                f"{both} differ in their inputs or outputs: they are not artifacts of one model"
            )
        if first.executable == other.executable:
            raise ConfigError(f"{both} share an executable: they take the same time")
        if first.batch_sizes != other.batch_sizes:
            sizes = f"{list(first.batch_sizes)} and {list(other.batch_sizes)}"
            raise ConfigError(f"{both} were compiled for batch sizes {sizes}: compile both for the same")


def per_row_ns(measured: Measured) -> float:
    """Return the geometric mean, over the batch sizes, of the median time for one row."""
    return durations.per_row_ns({size: timing.p50_ns for size, timing in measured.infer.items()})


def keep_fastest(store: Store, rows: Sequence[Measured], name: str) -> Measured:
    """Store the fastest of what was measured as the model ``name``, and return it.

    Files are shared with the model that it is a copy of. Raises `StoreError` if it can't be written.
    """
    fastest = min(rows, key=per_row_ns)
    store.put_manifest(msgspec.structs.replace(store.manifest(fastest.models[0]), name=name))
    return fastest


FAMILIES = {
    "alexnet": "AlexNet",
    "bert": "BERT",
    "densenet": "DenseNet",
    "inception": "Inception",
    "mobilenet": "MobileNet",
    "resnet": "ResNet",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg": "VGG",
    "zfnet": "ZFNet",
}
"""Family of a model by the beginning of its name."""
OTHER_FAMILY = "other"

_KB, _MB, _MS = 1e3, 1e6, 1e6


def family_of(measured: Measured) -> str:
    """Return the family of a model by the name of its architecture, of its file, or its own."""
    for name in (Path(measured.source).stem, *measured.models):
        for beginning, family in FAMILIES.items():
            if name.lower().startswith(beginning):
                return family
    return OTHER_FAMILY


def titles(rows: Sequence[Measured]) -> list[str]:
    """Return what each row's model is called: the zoo's architecture, or the first model's own name if that
    would be ambiguous or there is none.
    """
    sources = [row.source for row in rows]
    return [
        row.source
        if sources.count(row.source) == 1 and row.models[0].startswith(row.source) and row.source
        else row.models[0]
        for row in rows
    ]


def batch_sizes_of(rows: Sequence[Measured]) -> list[int]:
    """Return every batch size that a row has, ascending."""
    return sorted({size for row in rows for size in row.infer})


def csv_table(rows: Sequence[Measured]) -> str:
    """Return the table as CSV; durations are medians in ms, of four significant digits at least."""
    sizes = batch_sizes_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = ("input_kb", "output_kb", "weights_mb", "transfer_ms")
    writer.writerow(["family", "model", *numbers, *(f"b{size}_ms" for size in sizes)])
    for row, title in zip(rows, titles(rows), strict=True):
        durations = [_number(_median_ms(row.infer.get(size))) for size in sizes]
        writer.writerow([family_of(row), title, *map(_number, _sizes(row)), *durations])
    return text.getvalue()


def terminal_table(rows: Sequence[Measured]) -> Table:
    """Return the table for a terminal, and how far the 99th percentile is from the median at its worst.

    Engines have a column if there are several.
    """
    sizes = batch_sizes_of(rows)
    several = len({row.engine for row in rows}) > 1
    table = Table(box=None, pad_edge=False)
    for column in ("model", "engine")[: 1 + several]:
        table.add_column(column, no_wrap=True)
    for column in ("in kB", "out kB", "MB", "LOAD", *(f"B{size}" for size in sizes), "p99/p50"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, name in zip(rows, titles(rows), strict=True):
        spread = max(timing.spread for timing in (row.load, *row.infer.values()))
        durations = [_short(_median_ms(row.infer.get(size))) for size in sizes]
        names = (name, row.engine)[: 1 + several]
        table.add_row(*names, *map(_short, _sizes(row)), *durations, f"{spread:.2f}")
    return table


def heading(rows: Sequence[Measured]) -> str:
    """Return what `terminal_table` shows."""
    engines = " and ".join(sorted({row.engine for row in rows}))
    return f"Medians in ms on this machine, engine {engines}"


def _sizes(row: Measured) -> tuple[float, float, float, float | None]:
    return (
        row.input_bytes / _KB,
        row.output_bytes / _KB,
        row.weights_bytes / _MB,
        _median_ms(row.load),
    )


def _median_ms(timing: Timing | None) -> float | None:
    return None if timing is None else timing.p50_ns / _MS


def _number(value: float | None) -> str:
    """Return a number that reads back; empty for None."""
    return "" if value is None else f"{value:.6g}"


def _short(value: float | None) -> str:
    """Return a number as the paper's table has them: two decimals, fewer where they say nothing."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
