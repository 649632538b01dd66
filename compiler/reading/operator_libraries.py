"""The libraries that a model's operators are of (`artifact.op_libraries`), and how sessions know them.

Operators that neither ONNX Runtime nor a function of the model has are searched in the libraries that are
allowed here. While a model is compiled, every session of the compiler's knows the libraries that it needs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime
from onnx import TensorProto, helper

from mainspring.compiler.artifact import op_libraries
from mainspring.compiler.artifact.errors import CompileError, ExecutableError
from mainspring.compiler.artifact.op_libraries import OpLibrary
from mainspring.compiler.reading.normalise import all_nodes, graphs_of

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_KNOWN = {
    "ai.onnx.contrib": "onnxruntime-extensions",
    "com.microsoft.extensions": "onnxruntime-extensions",
}
"""Packages by the domain of their operators."""
_UNKNOWN = "is not a registered function/op"


class Needed(NamedTuple):
    """Things that a model needs beyond ONNX Runtime."""

    libraries: tuple[OpLibrary, ...] = ()
    operators: frozenset[tuple[str, str]] = frozenset()
    """Operators of these libraries, by domain and name."""


NOTHING = Needed()
_needed: ContextVar[Needed] = ContextVar("needed", default=NOTHING)


@contextmanager
def apart() -> Iterator[None]:
    """Forget, behind the block, what `use` was given within it."""
    token = _needed.set(NOTHING)
    try:
        yield
    finally:
        _needed.reset(token)


def use(needed: Needed) -> None:
    """Have the compiler's sessions know from now on what a model needs."""
    _needed.set(needed)


def in_use() -> Needed:
    """Return what the model that is being compiled needs."""
    return _needed.get()


def register_used(options: onnxruntime.SessionOptions) -> None:
    """Have a session know what the model needs; raise `ExecutableError`."""
    op_libraries.register(options, in_use().libraries)


def is_of_library(node: onnx.NodeProto) -> bool:
    """Say whether the node's operator is of a library, in the model that is being compiled."""
    return (node.domain, node.op_type) in in_use().operators


def needed_by(model: onnx.ModelProto, named: Sequence[Path] = ()) -> Needed:
    """Return what a model needs; ``named`` are libraries that its configuration names.

    Raises `CompileError` for an operator that no allowed library has, or a library that can't be used.
    """
    foreign = {(node.domain, node.op_type): node for node in _foreign(model)}
    foreign = {key: node for key, node in foreign.items() if not _provides(None, 0, *key)}
    if not foreign:
        return NOTHING
    try:
        found = op_libraries.paths(named)
        used: dict[Path, None] = {}
        for key, node in foreign.items():
            path = next((each for each in found if _provides(each, each.stat().st_mtime_ns, *key)), None)
            if path is None:
                raise CompileError(_refusal(node, list(found.values()), named))
            used[path] = None
        libraries = tuple(op_libraries.identity(path, found[path]) for path in used)
    except (ValueError, OSError, ExecutableError) as error:
        node = next(iter(foreign.values()))
        raise CompileError(f"{_what(node)} is of a library: {error}") from error
    return Needed(libraries, frozenset(foreign))


def _foreign(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes whose operator is neither a standard one nor a function of the model."""
    own = {(function.domain, function.name) for function in model.functions}
    nodes = list(all_nodes(model.graph))
    for function in model.functions:
        for node in function.node:
            nodes += [node, *(each for graph in graphs_of(node) for each in all_nodes(graph))]
    for node in nodes:
        if node.domain not in _STANDARD and (node.domain, node.op_type) not in own:
            yield node


@functools.lru_cache(maxsize=4096)
def _provides(path: Path | None, _changed_ns: int, domain: str, operator: str) -> bool:
    """Say whether ONNX Runtime, with a library or alone, has an operator."""
    node = helper.make_node(operator, [], ["y"], domain=domain)
    graph = helper.make_graph(
        [node], "probe", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if path is not None:
        op_libraries.load(options, path)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
        return _UNKNOWN not in str(error)
    return True


def _what(node: onnx.NodeProto) -> str:
    return (
        f"node {node.name or (node.output[0] if node.output else '')!r}: {node.op_type} of the domain "
        f"{node.domain!r}"
    )


def _refusal(node: onnx.NodeProto, allowed: Sequence[str], named: Sequence[Path]) -> str:
    """Say what would help a model with an operator that nothing here has."""
    package = _KNOWN.get(node.domain)
    what = f"{_what(node)} is an operator of {f'the package {package}' if package else 'a library'}"
    refused = [path for path in named if str(path) not in allowed]
    if refused:
        entry = str(refused[0])
        return (
            f"{what}; config.pbtxt names {entry}, which is not allowed here or is no file: "
            f"{op_libraries.remedy(entry)}"
        )
    if package and package in op_libraries.entries():
        return f"{what}, and {', '.join(allowed)} does not have it: install another version of {package}"
    entry = package or "/PATH/LIBRARY.so"
    install = f"`pip install {package}` and " if package else ""
    others = f" ({', '.join(allowed)}, allowed here, lacks it)" if allowed else ""
    return f"{what}{others}: {install}{op_libraries.remedy(entry)}"
