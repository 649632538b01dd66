"""Reading an executable of the ``tvm`` engine from a store: its plans, and the files of its kernels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import TVM, Manifest
from mainspring.compiler.artifact.plan import PLAN_FORMATS, Plans
from mainspring.compiler.artifact.store import Store, recompile_command


def read_plans(store: Store, manifest: Manifest) -> Plans:
    """Return the plans of a model, checked against its executable's facts.

    Raises `StoreError` for a model of another engine, and for plans that are damaged, of another version, or
    name a place that the model does not have.
    """
    remedy = recompile_command(manifest.name, manifest.source, store.root)
    if manifest.engine != TVM:
        raise StoreError(
            f"{manifest.name} was compiled for the engine {manifest.engine}, so it has no launch plans; "
            "`mainspring compile --engine tvm` makes them"
        )
    path = store.executable_path(manifest)
    info = store.executable_info(manifest)
    try:
        plans = msgspec.json.decode(path.read_bytes(), type=Plans)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {remedy}") from error
    wanted = PLAN_FORMATS[plans.target]
    if plans.format != wanted:
        raise StoreError(
            f"{path} has plans of format {plans.format} and this version runs format {wanted}; {remedy}"
        )
    problems = plans.problems(info.weights, info.inputs, info.outputs)
    if info.device != plans.target:
        problems.append(f"its plans are for {plans.target}, its facts for {info.device}")
    sizes = {plan.batch_size for plan in plans.plans}
    if not sizes >= {*manifest.batch_sizes}:
        problems.append(f"it has plans for batch sizes {sorted(sizes)}, not {list(manifest.batch_sizes)}")
    if problems:
        raise StoreError(f"{path} is damaged: {problems[0]}; {remedy}")
    return plans


def kernels_path(store: Store, manifest: Manifest, plans: Plans, name: str) -> Path | None:
    """Return a file of kernels, whose bytes are unaltered; None if the plans have no such file.

    ``name`` is one of `plan.SHARED_OBJECT`, `plan.SOURCE` and `plan.CUBIN`. Raises `StoreError` for a file
    that is missing or altered.
    """
    if name not in plans.files:
        return None
    remedy = recompile_command(manifest.name, manifest.source, store.root)
    path = store.executable_path(manifest).with_name(name)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; {remedy}") from error
    if found != plans.files[name]:
        raise StoreError(f"{path} was altered (SHA-256 {found}); {remedy}")
    return path
