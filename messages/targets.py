"""The hosts that an artifact is for, and the choice of a model's artifact that a worker runs.

A *target* is an engine and what its code is for: ``onnxruntime-x86_64-avx512f``, ``tvm-x86_64-avx2``,
``tvm-sm_90``, ``onnxruntime-cuda``, ``python-any``. A worker's hello names those that it runs, the best
first; one that ends with ``*`` stands for all that begin so. What names none, an emulated device, runs any
artifact.

Devices of one kind are alike, and estimates are kept for each kind. A kind's name holds its targets beside
what its workers call their device, so that it says which artifact of each model its estimates are of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from mainspring.messages.model import Build, ModelSpec

TARGET = re.compile(r"(onnxruntime|tvm|python)-[a-z0-9_]+(-[a-z0-9_]+)?")
"""The form of an artifact's target."""
ANY = "*"
MOST_TARGETS = 16
"""Most that a worker may name."""
SEPARATOR = "/"
"""Separator in a kind's name, between what its workers call their device and the targets that they run."""


def check_targets(targets: Sequence[str]) -> None:
    """Raise `ValueError`, which says what is right, for what can't be targets of workers or artifacts."""
    if len(targets) > MOST_TARGETS:
        raise ValueError(f"{len(targets)} targets are named; at most {MOST_TARGETS} may be")
    for each in targets:
        if not TARGET.fullmatch(each.removesuffix(ANY) + "x" * each.endswith(ANY)):
            raise ValueError(
                f"{each[:64]!r} is not a target: it is an engine and what its code is for, such as "
                "tvm-sm_90, tvm-x86_64-avx2 or onnxruntime-x86_64-avx512f"
            )


def runs(targets: Iterable[str], target: str) -> bool:
    """Return whether a worker of these targets runs an artifact for a target."""
    return any(_matches(each, target) for each in targets)


def _matches(wanted: str, target: str) -> bool:
    return target.startswith(wanted[:-1]) if wanted.endswith(ANY) else wanted == target


def built_for(spec: ModelSpec, targets: Sequence[str]) -> ModelSpec:
    """Return the model with the artifact that a worker of these targets runs, as its own.

    Where it runs none, or names no target, that is the artifact which the model has already.
    """
    if not spec.others:
        return spec
    builds = sorted([_own(spec), *spec.others], key=lambda build: build.target)
    for wanted in targets:
        for build in builds:
            if _matches(wanted, build.target):
                return _with(spec, build)
    return spec


def _own(spec: ModelSpec) -> Build:
    return Build(
        spec.target,
        spec.stored_name,
        spec.weights_hash,
        spec.executable,
        spec.weights_bytes,
        spec.extents,
        spec.profiles,
        spec.workspace_bytes,
    )


def _with(spec: ModelSpec, build: Build) -> ModelSpec:
    """Return the model with one of its artifacts as its own, and what was its own among the others."""
    if build.target == spec.target:
        return spec
    others = [each for each in (_own(spec), *spec.others) if each.target != build.target]
    return msgspec.structs.replace(
        spec,
        target=build.target,
        stored_as=build.stored_as,
        weights_hash=build.weights_hash,
        executable=build.executable,
        weights_bytes=build.weights_bytes,
        extents=build.extents,
        profiles=build.profiles,
        workspace_bytes=build.workspace_bytes,
        others=tuple(sorted(others, key=lambda each: each.target)),
    )


def each_build(spec: ModelSpec) -> list[ModelSpec]:
    """Return the model with each of its artifacts as its own, the present one first."""
    return [spec, *[_with(spec, build) for build in spec.others]]


def targets_of(spec: ModelSpec) -> list[str]:
    """Return the targets of a model's artifacts, in the order of their names."""
    return sorted([spec.target, *[build.target for build in spec.others]])


def merged(first: ModelSpec, second: ModelSpec) -> ModelSpec:
    """Return a model that has the artifacts of both, which are of one model for unlike hosts.

    Its batches are of the sizes that both were compiled for. Raises `ValueError`, which names what differs,
    if clients or the scheduler would see two models in them.
    """
    if not first.target or not second.target:
        raise ValueError("one of its artifacts does not say which hosts it is for; compile that again")
    if second.target in targets_of(first):
        raise ValueError(f"it has two artifacts for {second.target}")
    if second.others:
        raise ValueError("artifacts are added one at a time")
    for field in ("inputs", "outputs", "whole", "symbols", "pad", "at_ceilings", "sequencing"):
        ours, theirs = getattr(first, field), getattr(second, field)
        if ours != theirs:
            raise ValueError(
                f"its artifacts for {first.target} and {second.target} differ in {field}: "
                f"{_told(ours)} and {_told(theirs)}; compile both from one file, with the same options"
            )
    sizes = tuple([size for size in first.batch_sizes if size in second.batch_sizes])
    if not sizes:
        raise ValueError(
            f"its artifacts for {first.target} and {second.target} have no batch size in common: "
            f"{first.batch_sizes} and {second.batch_sizes}; compile both with the same --batch-sizes"
        )
    others = sorted([*first.others, _own(second)], key=lambda build: build.target)
    return msgspec.structs.replace(
        first, batch_sizes=sizes, unshared=first.unshared or second.unshared, others=tuple(others)
    )


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)


def kind_of(device_kind: str, targets: Sequence[str]) -> str:
    """Return the name of a kind of workers: all that call their device so and run the same targets."""
    return SEPARATOR.join((device_kind, *targets))


def device_kind_of(kind: str) -> str:
    """Return what workers of a kind call their device, which is the name of a profile."""
    return kind.partition(SEPARATOR)[0]


def targets_in(kind: str) -> tuple[str, ...]:
    """Return the targets that workers of a kind run, the best first."""
    return tuple(kind.split(SEPARATOR)[1:])


def kinds_build(kind: str, spec: ModelSpec) -> ModelSpec:
    """Return the model with the artifact that workers of a kind run, as `built_for`."""
    return built_for(spec, targets_in(kind)) if spec.others else spec


def cannot_run(spec: ModelSpec, targets: Sequence[str]) -> str:
    """Say why a worker of these targets can't run a model's artifact; empty if it can, as far as known."""
    if not targets or not spec.target or runs(targets, spec.target):
        return ""
    made = targets_of(spec)
    engines = {target.partition("-")[0] for target in targets}
    split = [target.partition("-") for target in made]
    # An engine that this worker was not given, and code for no GPU.
    other = any(engine not in engines and not on.startswith(("sm_", "cuda")) for engine, _, on in split)
    return (
        f"{spec.name} was compiled for {', '.join(made)}, and this worker runs {', '.join(targets)}: on such "
        f"a host `mainspring compile ... --name {spec.name} --beside` adds an artifact for it"
        + (", or give the worker `--engine auto`" if other else "")
    )
