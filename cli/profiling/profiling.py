"""Measures the models of a store on a device: LOAD, and INFER at each batch size (Clockwork, appendix A).

Models that share an executable differ in nothing that takes time, so one of them is measured for all. What
is measured is what the engine itself reports of each action: the copy of a LOAD, the run of an INFER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.profiling.lone_device import LoneDevice, random_rows
from mainspring.compiler import choice
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store, check_name
from mainspring.compiler.timings import Effort, Timing, repeat
from mainspring.messages.model import ModelSpec, Profile


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One executable on one device."""

    models: tuple[str, ...]
    """The models that share it; the first was measured."""
    source: str
    """The zoo's architecture or the ONNX file that it came from."""
    engine: str
    """Which engine it was compiled for, and so run by."""
    input_bytes: int
    """Of one row of all inputs."""
    output_bytes: int
    weights_bytes: int
    load: Timing
    infer: dict[int, Timing]
    """By batch size."""

    def profile(self) -> Profile:
        """Return the seed durations."""
        return Profile({size: timing.seed_ns for size, timing in self.infer.items()}, self.load.seed_ns)


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
    """Yield what each group's first model takes; ``begun`` is told its name before.

    The device holds one model at a time. Raises what the engine raises, and `ConfigError` of `chosen_sizes`.
    """
    for group in groups:
        first = group[0]
        begun(first.name)
        yield measure(device, group, chosen_sizes(first, batch_sizes), effort or Effort())


def measure(
    device: LoneDevice, group: Sequence[Manifest], batch_sizes: Sequence[int], effort: Effort
) -> Measured:
    """Measure a group's first model: LOADs that go round in the device's pages, then each batch size."""
    first = group[0]
    spec = first.spec()
    device.prepare(spec)
    places = _places(device.pages, spec.pages)
    try:
        load = Timing.of(repeat(lambda: device.load(spec, next(places)), effort))
        infer = {size: _infer(device, spec, size, effort) for size in batch_sizes}
    finally:
        device.release(spec)
    return Measured(
        models=tuple(manifest.name for manifest in group),
        source=first.source.path,
        engine=first.engine,
        input_bytes=spec.input_row_bytes,
        output_bytes=spec.output_row_bytes,
        weights_bytes=spec.weights_bytes,
        load=load,
        infer=infer,
    )


def _infer(device: LoneDevice, spec: ModelSpec, batch_size: int, effort: Effort) -> Timing:
    device.fill(spec, batch_size, random_rows(spec, batch_size))
    return Timing.of(repeat(device.infer(spec, batch_size), effort))


def keep(store: Store, measured: Measured, device_kind: str) -> None:
    """Store the profile with every model that it is of; raise `StoreError` if one can't be written.

    Batch sizes that were not measured keep what was known of them.
    """
    found = measured.profile()
    for name in measured.models:
        manifest = store.manifest(name)
        before = manifest.profiles.get(device_kind)
        infer_ns = {**(before.infer_ns if before else {}), **found.infer_ns}
        profile = Profile(dict(sorted(infer_ns.items())), found.load_ns)
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
            raise ConfigError(f"{both} differ in their inputs or outputs: they are no artifacts of one model")
        if first.executable == other.executable:
            raise ConfigError(f"{both} share an executable: they take the same time")
        if first.batch_sizes != other.batch_sizes:
            sizes = f"{list(first.batch_sizes)} and {list(other.batch_sizes)}"
            raise ConfigError(f"{both} were compiled for batch sizes {sizes}: compile both for the same")


def per_row_ns(measured: Measured) -> float:
    """Return the geometric mean, over the batch sizes, of the median time for one row."""
    return choice.per_row_ns({size: timing.p50_ns for size, timing in measured.infer.items()})


def keep_fastest(store: Store, rows: Sequence[Measured], name: str) -> Measured:
    """Store the fastest of what was measured as the model ``name``, and return it.

    Files are shared with the model that it is a copy of. Raises `StoreError` if it can't be written.
    """
    fastest = min(rows, key=per_row_ns)
    store.put_manifest(msgspec.structs.replace(store.manifest(fastest.models[0]), name=name))
    return fastest
