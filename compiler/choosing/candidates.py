"""A model's artifacts, each compiled for one engine, compared and measured; the chosen one is stored.

What an engine makes of a model is a *candidate* once its outputs are those of the original and its durations
and memory are known. Which one is kept, and what a compilation is about, ``pipeline`` and ``choice`` say.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError, ExecutableError, RowsMix, let_go
from mainspring.compiler.artifact.manifest import (
    CPU,
    ONNXRUNTIME,
    TVM,
    Independence,
    Manifest,
    Measured,
    Source,
    Verification,
)
from mainspring.compiler.artifact.profiles import put as put_beside
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import target_of
from mainspring.compiler.choosing.durations import Contender, Judge, Judged, describe, fastest
from mainspring.compiler.choosing.durations import profile as of_buckets
from mainspring.compiler.choosing.verify import verify
from mainspring.compiler.program.compiled import (
    MAKERS,
    Artifact,
    Target,
    measure_infer,
    measure_load,
    measure_shaped,
    measure_values,
)
from mainspring.compiler.program.split import beside_stock, packed_in_every_run
from mainspring.compiler.reading.defaults import NO_DEFAULTS, Defaults, as_bytes
from mainspring.compiler.reading.model_file import seen_name
from mainspring.compiler.reference import Prepared
from mainspring.compiler.rows.row_axes import IN_FRONT, RowAxes, with_axes
from mainspring.compiler.sizes.padding import padding, verify_padded
from mainspring.compiler.unverified import Unverified
from mainspring.messages.curve import Curve
from mainspring.messages.model import ModelSpec, Profile, TensorSpec, bucket_name
from mainspring.messages.sequences import check_sequencing
from mainspring.messages.sequencing import Sequencing


class Task(NamedTuple):
    """One compilation's parameters."""

    name: str
    store: Store
    batch_sizes: tuple[int, ...]
    source: Source
    quick: bool
    target: Target
    independence: Independence
    sequencing: Sequencing | None = None
    axes: RowAxes = IN_FRONT
    defaults: Defaults = NO_DEFAULTS


class Candidate(NamedTuple):
    """An artifact that computes what the original does."""

    artifact: Artifact
    verification: Verification
    measured: Measured
    shared: bool
    pad: dict[str, float]


def choose(
    prepared: Prepared, task: Task, judge: Judge | None
) -> tuple[Candidate, dict[str, Profile], dict[str, str]]:
    """Return the faster engine's artifact, its profile by device kind, and a description of each engine."""
    candidates: dict[str, Candidate] = {}
    refused: dict[str, CompileError] = {}
    for engine in (ONNXRUNTIME, TVM):
        try:
            candidates[engine] = candidate_for(prepared, task, engine)
        except RowsMix:
            raise
        except CompileError as error:
            refused[engine] = error
    if not candidates:
        raise refused[ONNXRUNTIME]
    if judge is None:
        found = [_by_seeds(each, prepared, task.batch_sizes) for each in candidates.values()]
    else:
        found = [*judge([_contender(each, prepared, task) for each in candidates.values()])]
    judged = {engine: Judged(failed=str(error)) for engine, error in refused.items()}
    judged |= zip(candidates, found, strict=True)
    best = fastest(judged)
    device_kind, profile = judged[best].device_kind, judged[best].profile
    profiles = {device_kind: profile} if profile is not None else {}
    return candidates[best], profiles, {engine: describe(judged[engine]) for engine in sorted(judged)}


def _by_seeds(candidate: Candidate, prepared: Prepared, batch_sizes: tuple[int, ...]) -> Judged:
    """Judge by the measurements on this CPU."""
    profile = seed_profiles(candidate, batch_sizes)[CPU]
    return Judged(infer_ns=_over_sizes(candidate, prepared, profile), profile=profile)


def _over_sizes(candidate: Candidate, prepared: Prepared, profile: Profile) -> dict[int, int]:
    """Return how long an INFER of each batch size takes, over all ceilings that the model's symbols may have.

    What runs at fewer ceilings takes as long as at the next of its own.
    """
    if not prepared.symbols:
        return profile.infer_ns
    info, padded = candidate.artifact.info, candidate.artifact.padded is not None
    spec = ModelSpec(
        *("", "", info.executable, (), 0, (), (), (), {}), symbols=info.symbols, at_ceilings=padded
    )
    curve, tried = Curve(spec, profile), [*itertools.product(*[each.ceilings for each in prepared.symbols])]
    return {
        size: round(statistics.geometric_mean(curve.share(size, sizes)[0] for sizes in tried))
        for size in profile.infer_ns
    }


def _contender(candidate: Candidate, prepared: Prepared, task: Task) -> Contender:
    artifact = candidate.artifact
    return Contender(
        artifact.info.engine,
        artifact.info.executable,
        artifact.layout.total_bytes,
        functools.partial(put, candidate, prepared, task, {}),
    )


def seed_profiles(candidate: Candidate, batch_sizes: tuple[int, ...]) -> dict[str, Profile]:
    """Return the profile of this CPU, by its device kind; empty for an artifact for another device."""
    measured = candidate.measured
    if not measured.infer_ns:
        return {}
    shaped = {
        bucket: {size: seeds[size] for size in batch_sizes} for bucket, seeds in measured.shaped_ns.items()
    }
    infer_ns = {size: measured.infer_ns[size] for size in batch_sizes}
    told = {size: ratio for size, ratio in measured.beside_stock.items() if size in batch_sizes}
    return {CPU: Profile(infer_ns, measured.load_ns, shaped, measured.spread, measured.packs, told)}


def candidate_for(prepared: Prepared, task: Task, engine: str) -> Candidate:
    """Compile for one engine, compare and measure; raise `CompileError`."""
    artifact: Artifact | None = MAKERS[engine](prepared, task.batch_sizes, task.target, task.source.pad)
    first: CompileError | None = None
    while artifact is not None:
        try:
            return _tried(artifact, prepared, task)
        except RowsMix:
            raise
        except (CompileError, ExecutableError) as error:
            # An optimisation may be what breaks it.
            let_go(error)
            first = first or (error if isinstance(error, CompileError) else prepared.refusal(str(error)))
        simpler = artifact.simpler
        del artifact
        artifact = simpler() if simpler else None
    assert first is not None, "an artifact was tried"
    raise first


def _tried(artifact: Artifact, prepared: Prepared, task: Task) -> Candidate:
    """Compare and measure; raise `CompileError` if outputs differ, `ExecutableError` if it does not run."""
    known = task.store.known_executable(artifact.info.executable)
    before = known.measured if known else Measured()
    checked = task.batch_sizes
    if task.quick and known:
        checked = tuple(size for size in checked if size in checked[:2] or size not in before.infer_ns)
    bound, precision = artifact.bind(), task.target.precision
    if isinstance(prepared, Unverified):
        measured = _estimated(artifact, prepared, task.batch_sizes)
        return Candidate(artifact, Verification(0.0, 0.0, 0.0, 0), measured, known is not None, {})
    compared = artifact.bind_to_compare() if prepared.draws else bound
    if artifact.padded is not None:
        verification = verify_padded(compared, prepared, artifact.padded, checked, precision)
        pad = artifact.padded.values
    else:
        verification = verify(compared, prepared, checked, precision)
        pad = padding(compared, prepared, task.source.pad, task.batch_sizes)
    measured = _measure(artifact, bound, task.batch_sizes, before)
    if prepared.whole and artifact.info.device == CPU and artifact.padded is None:
        measured = _measure_values(artifact, bound, prepared, measured)
    measured = _measure_packing(artifact, bound, prepared, task.batch_sizes, measured)
    return Candidate(artifact, verification, measured, known is not None, pad)


def _measure(artifact: Artifact, bound: Runnable, batch_sizes: tuple[int, ...], known: Measured) -> Measured:
    """Return the executable's measurements; missing ones are made here.

    Nothing is measured here for a GPU: a profile of the CPU would be wrong for it.
    """
    missing = [size for size in batch_sizes if size not in known.infer_ns]
    largest = batch_sizes[-1]
    workspace = dict(known.workspace_bytes)
    if largest not in workspace:
        workspace[largest] = artifact.workspace_bytes(largest)
    if artifact.info.device != CPU:
        return Measured(workspace_bytes=workspace)
    if artifact.info.symbols:
        return _measure_shaped(artifact, bound, batch_sizes, known, workspace)
    return Measured(
        infer_ns=known.infer_ns | measure_infer(bound, artifact.info, missing),
        load_ns=known.load_ns or measure_load(artifact.arena),
        workspace_bytes=workspace,
    )


def _estimated(artifact: Artifact, prepared: Unverified, batch_sizes: tuple[int, ...]) -> Measured:
    """Return estimates in the place of measurements: a worker's durations take their place."""
    symbols = artifact.info.symbols
    limits = tuple(symbol.limit for symbol in symbols)
    shaped = of_buckets(lambda _, sizes: prepared.infer_ns(sizes), symbols, batch_sizes) if symbols else {}
    return Measured(
        infer_ns=dict.fromkeys(batch_sizes, prepared.infer_ns(limits)),
        load_ns=measure_load(artifact.arena),
        workspace_bytes={batch_sizes[-1]: prepared.workspace_bytes()},
        shaped_ns={bucket_name(ceilings): seeds for ceilings, seeds in shaped.items()},
    )


def _measure_packing(
    artifact: Artifact, bound: Runnable, prepared: Prepared, batch_sizes: tuple[int, ...], known: Measured
) -> Measured:
    """Return the measurements with what packs weights in every run, and the ratio to a stock session."""
    if (artifact.info.engine, artifact.info.device) != (ONNXRUNTIME, CPU):
        return known
    packs = packed_in_every_run(artifact.content, artifact.info)
    missing = [size for size in batch_sizes if size not in known.beside_stock] if packs else []
    found = beside_stock(bound, artifact.info, prepared, missing) if missing else {}
    return msgspec.structs.replace(known, packs=packs, beside_stock=known.beside_stock | found)


def _measure_values(artifact: Artifact, bound: Runnable, prepared: Prepared, known: Measured) -> Measured:
    """Return the measurements with the spread over requests of different values, and seeds for the slower."""
    if known.spread:
        return known
    timing = measure_values(bound, artifact.info, prepared.rows, prepared.shapes[0])
    infer_ns = known.infer_ns
    if not prepared.symbols:
        infer_ns = {size: max(seed, timing.seed_ns) for size, seed in infer_ns.items()}
    return msgspec.structs.replace(known, infer_ns=infer_ns, spread=timing.spread)


def _measure_shaped(
    artifact: Artifact,
    bound: Runnable,
    batch_sizes: tuple[int, ...],
    known: Measured,
    workspace: dict[int, int],
) -> Measured:
    """Return the measurements of an executable with symbols: those of all buckets belong together."""
    if {*batch_sizes} <= {*known.infer_ns} and known.shaped_ns:
        return known
    found = measure_shaped(bound, artifact.info, batch_sizes)
    limits = tuple(symbol.limit for symbol in artifact.info.symbols)
    return Measured(
        infer_ns=found[limits],
        load_ns=known.load_ns or measure_load(artifact.arena),
        workspace_bytes=workspace,
        shaped_ns={bucket_name(ceilings): seeds for ceilings, seeds in found.items()},
    )


def _with_defaults(inputs: Sequence[TensorSpec], defaults: Defaults) -> tuple[TensorSpec, ...]:
    return tuple(
        msgspec.structs.replace(spec, default=as_bytes(defaults[spec.name], spec.dtype))
        if spec.name in defaults
        else spec
        for spec in inputs
    )


def _as_seen(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(msgspec.structs.replace(spec, name=seen_name(spec.name)) for spec in outputs)


def put(
    chosen: Candidate,
    prepared: Prepared,
    task: Task,
    profiles: dict[str, Profile],
    store: Store,
    name: str,
) -> Manifest:
    """Store all files of the artifact, the manifest last; return it."""
    artifact, measured = chosen.artifact, chosen.measured
    info = msgspec.structs.replace(artifact.info, measured=measured)
    if not prepared.verified:
        # Models that share the executable take what is stored for measurements, and these are estimates.
        info = store.known_executable(info.executable) or artifact.info
    store.put_executable(artifact.content, info, artifact.kernels)
    weights_hash, weights_bytes = store.put_weights(artifact.weights())
    manifest = Manifest(
        name=name,
        executable=info.executable,
        weights_hash=weights_hash,
        weights_bytes=weights_bytes,
        extents=artifact.layout.extents,
        tensors=artifact.tensors,
        inputs=with_axes(_with_defaults(prepared.inputs, task.defaults), task.axes.inputs, task.sequencing),
        outputs=_as_seen(with_axes(prepared.outputs, task.axes.outputs, task.sequencing)),
        batch_sizes=task.batch_sizes,
        profiles=profiles,
        source=task.source,
        verification=chosen.verification,
        workspace_bytes=measured.workspace_bytes[task.batch_sizes[-1]],
        engine=info.engine,
        precision=task.target.precision,
        independence=task.independence,
        whole=prepared.whole,
        symbols=info.symbols,
        pad=chosen.pad,
        at_ceilings=artifact.padded is not None,
        sequencing=task.sequencing,
        verified=prepared.verified,
        target=target_of(info.engine, info.device, info.instruction_set, task.target.arch),
    )
    try:
        check_sequencing(manifest.spec())
    except ValueError as error:
        raise CompileError(str(error)) from None
    return put_beside(store, manifest, adds=task.target.beside)
