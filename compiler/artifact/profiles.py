"""Models that are a profile alone, for the emulated engine; and a model's artifacts for unlike hosts.

The table of profiles is a CSV file with the columns of Clockwork's appendix A: ``family, model, input_kb,
output_kb, weights_mb, transfer_ms`` and ``b1_ms`` and so on for each batch size. A column ``spread`` may say
how executions vary.

A model's artifacts for unlike hosts are in one store: the first under its name, others under ``NAME@TARGET``,
all of one file and the same options. Served they are one model (`mainspring.messages.targets`).
"""

from __future__ import annotations

import csv
import hashlib
import logging
import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.messages.targets import TARGET, merged

EMULATED = "emulated"
"""The device kind of the emulated engine."""

COLUMNS = (
    "model",
    "input_kb",
    "output_kb",
    "weights_mb",
    "transfer_ms",
    "b1_ms",
    "b2_ms",
    "b4_ms",
    "b8_ms",
    "b16_ms",
)
"""The table's columns with the paper's batch sizes; other sizes work as well."""

SPREAD = "spread"
"""A column that a table may have: the 99th percentile of executions over their median, from 1 on."""

_NUMBERS = ("input_kb", "output_kb", "weights_mb", "transfer_ms")

_BATCH_COLUMN = re.compile(r"b([1-9][0-9]{0,3})_ms")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_KB, _MB = 1000, 1_000_000

_FLOAT_BYTES = 4

_NS_PER_MS = 1_000_000


def read_profile_table(path: Path, copies: int = 1) -> list[ModelSpec]:
    """Return ``copies`` models of each row of the table, called ``resnet50-1``... or, if one, ``resnet50``.

    Weights take single-page extents, as a device without tensors larger than a page would have them; the
    copies of a row share an executable. Raises `CompileError` that names the line and the column.
    """
    if copies < 1:
        raise CompileError(f"{copies} copies can't be: choose 1 or more")
    rows = _read_rows(path)
    models: list[ModelSpec] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        spec = _spec(path, line, row)
        if spec.name in lines:
            raise CompileError(
                f"{path}, line {line}: model {spec.name!r} is in line {lines[spec.name]} already; rename one"
            )
        lines[spec.name] = line
        models.extend(_copy(spec, copy, copies) for copy in range(1, copies + 1))
    return models


def _read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            rows = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or [])
    except OSError as error:
        raise CompileError(f"can't read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise CompileError(f"{path} is not a CSV file in UTF-8: {error}") from error
    missing = [name for name in ("model", *_NUMBERS) if name not in columns]
    if missing or not any(_BATCH_COLUMN.fullmatch(name) for name in columns):
        wanted = ", ".join(missing) or "b1_ms or another batch size"
        raise CompileError(f"{path} has no column {wanted}; the first line names {columns}")
    if not rows:
        raise CompileError(f"{path} has no rows below its header, so there are no models in it")
    return rows


def _spec(path: Path, line: int, row: dict[str, str]) -> ModelSpec:
    name = row["model"].strip()
    if not _NAME.fullmatch(name):
        raise CompileError(
            f"{path}, line {line}, column model: {name!r} can't be a name: use letters, digits, '.', '_', '-'"
        )
    numbers = {column: _positive(path, line, column, row[column]) for column in _NUMBERS}
    batches = {column: _BATCH_COLUMN.fullmatch(column) for column in row}
    infer_ns = {
        int(match[1]): round(_positive(path, line, column, row[column]) * _NS_PER_MS)
        for column, match in batches.items()
        if match and row[column].strip()
    }
    if not infer_ns:
        raise CompileError(f"{path}, line {line}: no batch size has a duration; fill in b1_ms at least")
    spread = 0.0
    if row.get(SPREAD, "").strip() and (spread := _positive(path, line, SPREAD, row[SPREAD])) < 1:
        raise CompileError(
            f"{path}, line {line}, column {SPREAD}: {spread:g} is less than 1; it is the 99th percentile of "
            "the executions over their median"
        )
    weights_bytes = math.ceil(numbers["weights_mb"] * _MB)
    load_ns = round(numbers["transfer_ms"] * _NS_PER_MS)
    return ModelSpec(
        name=name,
        weights_hash="",
        executable=_digest(name),
        batch_sizes=tuple(sorted(infer_ns)),
        weights_bytes=weights_bytes,
        extents=(1,) * -(-weights_bytes // PAGE_BYTES),
        inputs=(_tensor("data", numbers["input_kb"]),),
        outputs=(_tensor("output", numbers["output_kb"]),),
        profiles={EMULATED: Profile(dict(sorted(infer_ns.items())), load_ns, spread=spread)},
    )


def _copy(spec: ModelSpec, copy: int, copies: int) -> ModelSpec:
    """Return the spec under the copy's name, with a hash that no other copy has."""
    name = spec.name if copies == 1 else f"{spec.name}-{copy}"
    return msgspec.structs.replace(spec, name=name, weights_hash=_digest(f"{name} weights"))


def _tensor(name: str, kilobytes: float) -> TensorSpec:
    return TensorSpec(name, "float32", (max(1, round(kilobytes * _KB / _FLOAT_BYTES)),))


def _positive(path: Path, line: int, column: str, text: str) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise CompileError(f"{path}, line {line}, column {column}: {text!r} is not a positive number")
    return number


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_LOGGER = logging.getLogger(__name__)

_SEPARATOR = "@"


def served_name(stored: str) -> str:
    """Return what a stored artifact is served as: the name before ``@TARGET``, or its own."""
    name, _, target = stored.partition(_SEPARATOR)
    return name if TARGET.fullmatch(target) else stored


def beside(store: Store, name: str) -> list[Manifest]:
    """Return the readable artifacts that a store has of a model, that of the model's own name first."""
    names = [each for each in store.names() if served_name(each) == name] if store.root.is_dir() else []
    found = []
    for each in sorted(names, key=lambda each: (each != name, each)):
        try:
            found.append(store.manifest(each))
        except StoreError as error:
            _LOGGER.warning("left out: %s", error)
    return found


def put(store: Store, manifest: Manifest, *, adds: bool) -> Manifest:
    """Store the manifest of an artifact that was compiled under a model's name; return it as it is stored.

    ``adds``: beside those for other targets; otherwise it replaces all of the model's. Raises `CompileError`
    if it can't be served together with those, which names what differs.
    """
    known = [each for each in beside(store, manifest.name) if each.target != manifest.target]
    if not adds:
        store.put_manifest(manifest)
        for each in beside(store, manifest.name):
            if each.name != manifest.name:
                store.remove(each.name)
        return manifest
    for each in known:
        if (each.source.kind, each.source.sha256, each.source.seed) != (
            manifest.source.kind,
            manifest.source.sha256,
            manifest.source.seed,
        ):
            raise CompileError(
                f"{manifest.name} was compiled for {each.target or 'this host'} of another file "
                f"({each.source.path}): compile both of one file, or leave --beside out to replace it"
            )
        try:
            merged(each.spec(), manifest.spec())
        except ValueError as error:
            raise CompileError(f"{manifest.name} can't be served with what is stored: {error}") from None
    if any(each.name == manifest.name for each in known):
        name = f"{manifest.name}{_SEPARATOR}{manifest.target}"
        manifest = msgspec.structs.replace(manifest, name=name)
    store.put_manifest(manifest)
    return manifest


def grouped(specs: Iterable[ModelSpec]) -> tuple[list[ModelSpec], dict[str, str]]:
    """Return stored models as they are served, in the order in which their names come.

    An artifact that can't be served together with the others of its model is left out, and why is told by
    its name in the store.
    """
    found: dict[str, ModelSpec] = {}
    left_out: dict[str, str] = {}
    for spec in specs:
        name, stored_as = served_name(spec.name), spec.name
        own = spec if name == stored_as else msgspec.structs.replace(spec, name=name, stored_as=stored_as)
        try:
            found[name] = merged(found[name], own) if name in found else own
        except ValueError as error:
            left_out[stored_as] = f"{stored_as} is not served: {error}"
    return list(found.values()), left_out
