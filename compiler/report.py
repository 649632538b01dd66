"""Reports of a compilation: lines for a person at a terminal, or fields for a program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from mainspring.compiler.artifact.errors import AS_IT_IS
from mainspring.compiler.artifact.manifest import CPU, FP32, ONNXRUNTIME, PYTHON, Manifest
from mainspring.compiler.pipeline import Compiled
from mainspring.compiler.reading.replaced_operators import LOCALE
from mainspring.compiler.sizes.trials import MOST_WORKSPACE_BYTES
from mainspring.messages.model import Profile, slot_bytes
from mainspring.messages.sequencing import Sequencing

_NS_PER_MS = 1e6
_BYTES_PER_MB = 1e6


def counted(count: int, noun: str) -> str:
    """Return ``1 page`` or ``2 pages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_artifact(compiled: Compiled) -> str:
    """Say in one line what was stored: sizes, pages, extents, and whether the executable is shared."""
    manifest = compiled.manifest
    state = "kept" if compiled.kept else "shared" if compiled.shared else "new"
    megabytes, pages = manifest.weights_bytes / _BYTES_PER_MB, counted(manifest.pages, "page")
    return (
        f"{manifest.name:<16} {megabytes:6.1f} MB in {pages:>8} "
        f"({describe_extents(manifest.extents)}), executable {manifest.executable[:12]} ({state})"
        f"{'' if manifest.engine == ONNXRUNTIME else f' for {manifest.engine}'}"
        f"{'' if manifest.precision == FP32 else f' in {manifest.precision}'}"
        f"{''.join(f', {symbol}' for symbol in manifest.symbols)}"
        f"{', padded within buckets' if manifest.pad and not manifest.at_ceilings else ''}"
        f"{_texts(manifest)}"
    )


def _texts(manifest: Manifest) -> str:
    """Say how long texts may be, if the model has any."""
    slots = [slot for each in (*manifest.inputs, *manifest.outputs) if (slot := slot_bytes(each.dtype))]
    return f", texts of at most {max(slots):,} bytes" if slots else ""


def describe_profile(compiled: Compiled) -> str:
    """Describe in one line an executable's seed durations and workspace."""
    kind, profile = _profile(compiled.manifest)
    workspace = compiled.manifest.workspace_bytes / _BYTES_PER_MB
    if not profile.infer_ns:
        return (
            f"not measured: `mainspring profile --save` does so on the device; workspace {workspace:.0f} MB"
        )
    said = "measured" if compiled.manifest.verified else "estimated from its work until workers measure it"
    # A GPU takes a tenth of the time.
    digits, where = (1, "") if kind == CPU else (3, f" on {kind}")
    digits = 2 if compiled.manifest.engine == PYTHON else digits
    infer = ", ".join(
        f"{size}: {ns / _NS_PER_MS:.{digits}f}" for size, ns in sorted(profile.infer_ns.items())
    )
    load_ms = profile.load_ns / _NS_PER_MS
    spread = f" (99th percentile {profile.spread:.1f} times the median)" if profile.spread else ""
    return f"{said}{where}: load {load_ms:.2f} ms, infer {infer} ms{spread}; workspace {workspace:.0f} MB"


def describe_packing(compiled: Compiled) -> str:
    """Say in one line which nodes pack their weights in every run, and what that costs, if any does."""
    return _profile(compiled.manifest)[1].packing


def fields(compiled: Compiled) -> dict[str, Any]:
    """Return a compilation's result for programs, ready for JSON; names end in their unit."""
    manifest = compiled.manifest
    kind, profile = _profile(manifest)
    return {
        "name": manifest.name,
        "engine": manifest.engine,
        "precision": manifest.precision,
        "executable": manifest.executable,
        "executable_shared": compiled.shared,
        "kept": compiled.kept,
        "weights_hash": manifest.weights_hash,
        "weights_bytes": manifest.weights_bytes,
        "pages": manifest.pages,
        "extents": list(manifest.extents),
        "workspace_bytes": manifest.workspace_bytes,
        "device_kind": kind,
        "load_ns": profile.load_ns,
        "infer_ns": {str(size): ns for size, ns in sorted(profile.infer_ns.items())},
        "spread": profile.spread,
        "packs": profile.packs,
        "beside_stock": {str(size): ratio for size, ratio in sorted(profile.beside_stock.items())},
        "inputs": msgspec.to_builtins(manifest.inputs),
        "outputs": msgspec.to_builtins(manifest.outputs),
        "verification": msgspec.to_builtins(manifest.verification),
        "repaired_nodes": list(compiled.repaired),
        "located_nodes": list(compiled.located),
        "engines": compiled.engines,
        "batch_sizes": list(manifest.batch_sizes),
        "unshared": manifest.unshared,
        "verified": manifest.verified,
        "whole": manifest.whole,
        "pad": manifest.pad,
        "at_ceilings": manifest.at_ceilings,
        "ceilings": {symbol.name: list(symbol.ceilings) for symbol in manifest.symbols},
        "seconds": compiled.seconds,
        "sequencing": msgspec.to_builtins(manifest.sequencing),
        "whole_because": compiled.whole_because,
        "optimised": compiled.optimised,
        "smaller": compiled.smaller,
    }


def _profile(manifest: Manifest) -> tuple[str, Profile]:
    """Return this CPU's profile if there is one, else another's, with its device kind; else an empty one."""
    kinds = [CPU] if CPU in manifest.profiles else [*manifest.profiles]
    return (kinds[0], manifest.profiles[kinds[0]]) if kinds else ("", Profile({}, 0))


def describe_extents(extents: tuple[int, ...]) -> str:
    """Say extents briefly: ``26 + 2 x 5 + 17 x 1`` is one of 26 pages, two of 5 and seventeen of 1."""
    runs = [(pages, len(list(group))) for pages, group in groupby(sorted(extents, reverse=True))]
    return " + ".join(str(pages) if count == 1 else f"{count} x {pages}" for pages, count in runs)


def describe_verification(compiled: Compiled) -> str:
    """Say in one line how the model compares with stock ONNX Runtime."""
    if compiled.manifest.engine == PYTHON:
        return "Python code: it ran at each batch size; there is nothing to compare it with"
    if not compiled.manifest.verified:
        return "unverified: served on your word; nothing was compared with stock ONNX Runtime"
    done = compiled.manifest.verification
    return (
        f"outputs of {done.rows} rows differ from stock ONNX Runtime's by at most "
        f"{done.largest_difference:.2g} (tolerance: {done.relative_tolerance:g} of the element, plus "
        f"{done.absolute_tolerance:g} of the largest one)"
        f"{_optimised(compiled)}{done.opinion and f'; {done.opinion}'}"
    )


def _optimised(compiled: Compiled) -> str:
    """Say how far the model is optimised, if that is less than usual."""
    if not compiled.optimised:
        return ""
    return f", with {compiled.optimised}: with more it fails, or answers otherwise"


def describe_sharing(compiled: Compiled) -> str:
    """Say in one line why requests don't share executions of the model; empty if they do."""
    if compiled.whole_because:
        reason = compiled.whole_because.replace(f"; or {AS_IT_IS}", "")
        return f"served whole, one request at a time: {reason}"
    why = compiled.manifest.unshared
    return (
        f"served one row at a time, because requests that share a run could change each other: {why}"
        if why
        else ""
    )


def describe_rows(compiled: Compiled) -> str:
    """Say in one line where a model has its rows, if not in front of every tensor; else nothing."""
    spec = compiled.manifest.spec()
    if spec.whole or spec.rows_in_front:
        return ""
    places = [f"{tensor.rows_axis} of {tensor.name}" for tensor in (*spec.inputs, *spec.outputs)]
    return f"rows, which requests may share an execution by, are axis {', '.join(places)}"


def describe_buckets(compiled: Compiled) -> str:
    """Say in one line for which shapes a model that runs at its buckets' ceilings alone was compiled."""
    manifest = compiled.manifest
    ceilings = "; ".join(f"{each.name} {', '.join(map(str, each.ceilings))}" for each in manifest.symbols)
    buckets = len(manifest.spec().buckets)
    return (
        f"kernels for {counted(buckets, 'bucket')} ({ceilings}) at "
        f"{counted(len(manifest.batch_sizes), 'batch size')}, compiled and compared in "
        f"{compiled.seconds:.0f} s; every request is padded to the next of these sizes"
    )


def describe_smaller(compiled: Compiled) -> str:
    """Say in one line that larger batches were left out."""
    return (
        f"batches of at most {compiled.manifest.batch_sizes[-1]} rows: larger ones need more than "
        f"{MOST_WORKSPACE_BYTES >> 30} GiB for activations, or too much memory or time at the largest sizes; "
        "`--batch-sizes` asks for them"
    )


def describe_sequencing(sequencing: Sequencing) -> str:
    """Say in one line what the gateway keeps for sequences of requests."""
    states = [f"{each.output} is fed to {each.input} of the next" for each in sequencing.states]
    controls = [f"{each.input} says {each.kind}" for each in sequencing.controls]
    return f"requests come in sequences: {', '.join([*states, *controls]) or 'without a state'}"


def describe_engines(compiled: Compiled) -> str:
    """Compare in one line the engines among which the faster one was chosen."""
    each = "; ".join(f"{engine}: {text}" for engine, text in compiled.engines.items())
    return f"kept {compiled.manifest.engine}: {each}"


def describe_repairs(compiled: Compiled) -> str:
    """Say in one line which nodes no longer have the exporter's batch."""
    return (
        f"the exporter's batch was in {counted(len(compiled.repaired), 'node')}, and was opened there: "
        f"{_some(compiled.repaired)}"
    )


def describe_locales(compiled: Compiled) -> str:
    """Say in one line which nodes were given a locale."""
    return (
        f"{counted(len(compiled.located), 'node')} without a locale changes the case of letters by {LOCALE}: "
        f"{_some(compiled.located)}"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def summarise(done: list[Compiled], seconds: float) -> str:
    """Sum up all compilations in one line."""
    pages = sum(compiled.manifest.pages for compiled in done)
    executables = len({compiled.manifest.executable for compiled in done})
    kept = sum(compiled.kept for compiled in done)
    total_mb = sum(compiled.manifest.weights_bytes for compiled in done) / _BYTES_PER_MB
    return (
        f"{counted(len(done), 'model')} ({kept} kept), {counted(executables, 'executable')}, "
        f"{total_mb:.0f} MB of weights in {counted(pages, 'page')}, {seconds:.1f} s"
    )
