"""Copies of the zoo's architectures in a store, with different weights and one executable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import TVM, Manifest, Source
from mainspring.compiler.artifact.plan import read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import check_target
from mainspring.compiler.choosing.durations import Judge
from mainspring.compiler.pipeline import (
    BATCH_SIZES,
    DEFAULT_TARGET,
    Compiled,
    check_batch_sizes,
    check_target_names,
    compile_model,
)
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.rows.proving import settled
from mainspring.compiler.zoo.catalogue import build, names

MOST_COPIES = 10_000


def compile_zoo(
    architectures: Sequence[str],
    store: Store,
    copies: int = 1,
    seed: int = 0,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    target: Target = DEFAULT_TARGET,
    judge: Judge | None = None,
) -> Iterator[Compiled]:
    """Compile ``copies`` of each architecture into ``store``, yielding each when it is done.

    A single copy has the architecture's name, several copies are called ``resnet50-1``, ``resnet50-2``...,
    with seeds that count up from ``seed``. A copy that is already in the store is kept. ``judge`` is
    `compile_model`'s. Raises `CompileError` or `StoreError`; names and numbers are checked before anything is
    compiled.
    """
    sizes = check_batch_sizes(batch_sizes)
    check_target_names(target, judge)
    if not 1 <= copies <= MOST_COPIES:
        raise CompileError(f"{copies} copies can't be: choose from 1 to {MOST_COPIES}")
    if seed < 0:
        raise CompileError(f"seed {seed} can't be: it is 0 or more")
    for architecture in architectures:
        if architecture not in names():
            build(architecture)
    return _compile(architectures, store, copies, seed, sizes, target, judge)


def _compile(
    architectures: Sequence[str],
    store: Store,
    copies: int,
    seed: int,
    sizes: tuple[int, ...],
    target: Target,
    judge: Judge | None,
) -> Iterator[Compiled]:
    for architecture in architectures:
        for copy in range(copies):
            name = architecture if copies == 1 else f"{architecture}-{copy + 1}"
            source = Source(
                "zoo",
                architecture,
                seed=seed + copy,
                engine=target.engine,
                device=target.device,
                precision=target.precision,
            )
            manifest = _kept(store, name, source, sizes)
            if manifest is not None:
                yield Compiled(manifest, shared=True, kept=True)
            else:
                store.check_writable()
                model = build(architecture, seed + copy)
                yield compile_model(model, name, store, sizes, source, quick=True, target=target, judge=judge)


def _kept(store: Store, name: str, source: Source, sizes: tuple[int, ...]) -> Manifest | None:
    """Return the manifest of exactly this copy if the store holds it whole and it can be run here."""
    try:
        manifest = store.manifest(name)
        check_target(store.executable_info(manifest), "")
        store.verify(name)
        if manifest.engine == TVM:
            read_plans(store, manifest)
    except StoreError:
        return None
    if manifest.source != source or manifest.batch_sizes != sizes:
        return None
    return settled(store, manifest)
