"""Conversion of models whose version ONNX Runtime does not read, if the result is provably the same model.

An IR version says which fields and element types a file may use, an opset version what the operators mean. A
file that uses nothing newer than what ONNX Runtime reads is the same model under the older number. Where an
operator itself has to change, the onnx package converts the model, and the result has to compute what the
onnx package's own evaluator computes of the original.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import Message
from onnx import TensorProto, helper, version_converter
from onnx.reference import ReferenceEvaluator

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.contents import serialise, whole
from mainspring.compiler.reading.normalise import MAIN_DOMAINS, opset_of
from mainspring.compiler.reading.stock import StockSession

OLDEST_OPSET = 7
"""Oldest opset of which ONNX Runtime has all operators; of older ones it has some."""

_TOLERANCE = 1e-3

_IR_ELEMENTS = {
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
    14: ("FLOAT6E2M3", "FLOAT6E3M2"),
}
"""Element types that each IR version added (the comments of ``onnx.proto``)."""
_IR_FIELDS = {
    11: ("ModelProto.configuration", "NodeProto.device_configurations"),
    14: ("TypeProto.opaque_type",),
}
"""Fields that each IR version added, or made part of the standard."""
_ELEMENT_FIELDS = {"data_type", "elem_type"}
_ELEMENT_ATTRIBUTES = {"to", "dtype", "output_dtype", "precision", "stash_type"}


class Readable(NamedTuple):
    """A model that ONNX Runtime reads."""

    model: onnx.ModelProto
    converted: bool
    """True if operators were changed, so that the outputs have to be compared with the original's."""


def make_readable(model: onnx.ModelProto) -> Readable:
    """Return the model with versions that ONNX Runtime reads; raise `CompileError` if that is impossible."""
    opset = opset_of(model)
    if model.ir_version <= newest_ir() and OLDEST_OPSET <= opset <= newest_opset():
        return Readable(model, converted=False)
    readable = onnx.ModelProto()
    readable.CopyFrom(model)
    _lower_ir(readable)
    if opset > newest_opset():
        changed = _changed_since(readable, newest_opset())
        if changed:
            return _converted(readable, newest_opset(), changed)
        _set_opset(readable, newest_opset())
    elif 0 < opset < OLDEST_OPSET:
        try:
            StockSession(serialise(readable))
        except CompileError as error:
            return _converted(readable, OLDEST_OPSET, [str(error)])
    return Readable(readable, converted=False)


def check_conversion(
    original: onnx.ModelProto,
    names: Sequence[str],
    arrays: Sequence[npt.NDArray[np.generic]],
    found: Sequence[npt.NDArray[np.generic]],
) -> None:
    """Raise `CompileError` unless the onnx package's evaluator gives these outputs for the original."""
    advice = f"the model's author can export it with an opset from {OLDEST_OPSET} to {newest_opset()}"
    try:
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(whole(original)).run(None, dict(zip(names, arrays, strict=True)))
    except Exception as error:  # The evaluator raises numpy's errors.
        raise CompileError(
            f"the model of opset {opset_of(original)} was converted, but the onnx package can't run the "
            f"original to compare it ({type(error).__name__}: {error}); {advice}"
        ) from error
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != np.shape(theirs) or not np.allclose(ours, theirs, _TOLERANCE, 1e-6, equal_nan=True):
            raise CompileError(
                f"the model of opset {opset_of(original)} computes something else when onnx converts it; "
                f"{advice}"
            )


@functools.cache
def newest_ir() -> int:
    """Return the newest IR version that this ONNX Runtime reads."""
    return next(version for version in range(onnx.IR_VERSION, 0, -1) if _opens(version, OLDEST_OPSET))


@functools.cache
def newest_opset() -> int:
    """Return the newest version of ONNX's own operators that this ONNX Runtime reads."""
    newest = onnx.defs.onnx_opset_version()
    return next(version for version in range(newest, 0, -1) if _opens(min(newest_ir(), 10), version))


def _opens(ir_version: int, opset: int) -> bool:
    """Return whether ONNX Runtime opens a model of these versions."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    try:
        StockSession(serialise(model))
    except CompileError:
        return False
    return True


def _lower_ir(model: onnx.ModelProto) -> None:
    """Lower the IR version to a readable one, if nothing of the versions between is used."""
    newest = newest_ir()
    if model.ir_version <= newest:
        return
    library = f"ONNX Runtime {onnxruntime.__version__}"
    advice = f"{library} reads up to {newest}: the model's author can export it with ir_version {newest}"
    if model.ir_version > onnx.IR_VERSION:
        raise CompileError(
            f"the model has IR version {model.ir_version}, which onnx {onnx.__version__} does not know; "
            f"{advice}"
        )
    versions = range(newest + 1, model.ir_version + 1)
    elements = {
        getattr(TensorProto, name): name
        for version in versions
        for name in _IR_ELEMENTS.get(version, ())
        if hasattr(TensorProto, name)
    }
    fields = {f"onnx.{name}" for version in versions for name in _IR_FIELDS.get(version, ())}
    used = next(_uses(model, elements, fields), None)
    if used is not None:
        raise CompileError(f"the model has IR version {model.ir_version} and uses its {used}; {advice}")
    model.ir_version = newest


def _uses(message: Message, elements: dict[int, str], fields: set[str]) -> Iterator[str]:
    """Yield those of these element types and fields that occur anywhere in the message."""
    if isinstance(message, onnx.AttributeProto) and message.name in _ELEMENT_ATTRIBUTES:
        yield from filter(None, [elements.get(message.i)])
    for field, value in message.ListFields():
        if field.full_name in fields:
            yield field.full_name.removeprefix("onnx.")
        if field.message_type is None:
            if field.name in _ELEMENT_FIELDS and value in elements:
                yield elements[value]
        else:
            for part in value if field.is_repeated else [value]:
                yield from _uses(part, elements, fields)


def _changed_since(model: onnx.ModelProto, opset: int) -> list[str]:
    """Return the nodes whose operator has another definition in the model's opset than in ``opset``."""
    return [
        f"{node.name or node.output[0]!r} ({node.op_type})"
        for node in _nodes(model)
        if node.domain in MAIN_DOMAINS and _since(node.op_type, opset_of(model)) > opset
    ]


def _since(operator: str, opset: int) -> int:
    """Return the opset that gave the operator its definition in ``opset``; 0 if it has none."""
    try:
        return int(onnx.defs.get_schema(operator, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of the model, in subgraphs and functions too."""
    pending: list[onnx.NodeProto] = list(model.graph.node)
    for function in model.functions:
        pending.extend(function.node)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                pending.extend(graph.node)


def _converted(model: onnx.ModelProto, opset: int, reasons: list[str]) -> Readable:
    """Have the onnx package convert the model; raise `CompileError` with ``reasons`` if it can't."""
    try:
        converted = version_converter.convert_version(whole(model), opset)
        StockSession(serialise(converted))
    except Exception as error:  # The converter raises C++'s errors, without a common base.
        raise CompileError(
            f"the model is of opset {opset_of(model)}, of which ONNX Runtime {onnxruntime.__version__} does "
            f"not have {', '.join(reasons[:3])}; onnx.version_converter can't make it opset {opset} either "
            f"({str(error).strip().splitlines()[0]}); the model's author can export it with an "
            f"opset from {OLDEST_OPSET} to "
            f"{newest_opset()}"
        ) from error
    return Readable(converted, converted=True)


def _set_opset(model: onnx.ModelProto, opset: int) -> None:
    for entry in [*model.opset_import, *(e for function in model.functions for e in function.opset_import)]:
        if entry.domain in MAIN_DOMAINS:
            entry.version = min(entry.version, opset)
