"""Deciding whether requests may share executions of a model: at compilation, or at the start for a store.

`independence.walk` makes the proof. An artifact without a proof is proved from its graph; if that fails, its
rows run one at a time until it is compiled again. Libraries for compiling are imported where they are used: a
store whose models have their proofs is read without them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import ONNXRUNTIME, PROOF_VERSION, PYTHON, Independence, Manifest
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.messages.model import ModelSpec

if TYPE_CHECKING:
    import onnx

    from mainspring.compiler.reading.contents import Content

_LOGGER = logging.getLogger(__name__)


def judge(model: onnx.ModelProto, content: Content, fixed: Sequence[Mapping[str, int]] = ()) -> Independence:
    """Return whether the rows of a model whose batch is open are proven to be independent.

    ``content``: the model as ONNX Runtime reads it. A proof that fails may succeed once the graph's constants
    are folded, or at each of some sizes of the other open dimensions, ``fixed``, where samples are compared.
    """
    from mainspring.compiler.reading.contents import serialise

    found = _judge(model, content)
    if not found.mixes or not fixed:
        return found
    for sizes in fixed:
        one = at_sizes(model, sizes)
        at_size = _judge(one, serialise(one))
        if at_size.mixes:
            where = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            return Independence(PROOF_VERSION, f"{at_size.mixes} (with {where})")
    return Independence(PROOF_VERSION)


def at_sizes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """Return the model with open dimensions of its inputs fixed, by their names."""
    fixed = type(model)()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim[1:]:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    return fixed


def _judge(model: onnx.ModelProto, content: Content) -> Independence:
    from mainspring.compiler.independence.walk import why_rows_mix
    from mainspring.compiler.reading.stock import optimise_portably

    why = why_rows_mix(model)
    # The compiler reports whether ONNX Runtime accepts the model.
    with suppress(CompileError):
        if why and not why_rows_mix(optimise_portably(content, values=False)):
            why = ""
    return Independence(PROOF_VERSION, why)


def proved(store: Store, manifest: Manifest) -> Manifest:
    """Return the manifest with a verdict of the present rules, from the stored graph if it has none.

    The proof is written to the store if the user may write there. An unreadable graph proves nothing.
    """
    if manifest.whole or manifest.engine == PYTHON:
        return manifest
    known = manifest.independence
    if known is not None and known.version == PROOF_VERSION:
        return manifest
    verdict = Independence(PROOF_VERSION, _why_not(store, manifest))
    found = msgspec.structs.replace(manifest, independence=verdict)
    if not verdict.mixes:
        try:
            store.put_manifest(found)
        except StoreError:
            _LOGGER.info("the proof of %s can't be kept in %s", manifest.name, store.root)
    return found


def settled(store: Store, manifest: Manifest) -> Manifest | None:
    """Return the manifest with a verdict of the present rules; None if compiling again may prove more.

    The original file may allow a proof that the stored graph does not.
    """
    known = manifest.independence
    found = proved(store, manifest)
    judged = known is not None and known.version == PROOF_VERSION
    return found if judged or not found.unshared else None


def proved_specs(store: Store, manifests: Sequence[Manifest]) -> list[ModelSpec]:
    """Return the models' specifications, with a warning for each that was batched and can't be proved."""
    found = []
    for manifest in manifests:
        checked = proved(store, manifest)
        if checked.unshared and len(manifest.batch_sizes) > 1:
            _LOGGER.warning(
                "%s is served one row at a time: %s; %s, and proves more of it if the file shows it",
                manifest.name,
                checked.unshared,
                recompile_command(manifest.name, manifest.source, store.root),
            )
        found.append(checked.spec())
    return found


def _why_not(store: Store, manifest: Manifest) -> str:
    if manifest.engine != ONNXRUNTIME:
        return "it was compiled before the present rules for rows, and its plans hold no graph to prove it of"
    import onnx

    from mainspring.compiler.independence.walk import why_rows_mix

    try:
        weights = frozenset(tensor.name for tensor in store.executable_info(manifest).weights)
        return why_rows_mix(onnx.load(store.executable_path(manifest)), weights)
    except Exception as error:  # A StoreError, or protobuf's errors for data that is not a model.
        return f"its stored graph can't be read ({type(error).__name__})"
