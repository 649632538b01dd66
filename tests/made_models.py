"""How a made model comes from its graph.

Graphs are in the onnx package's text format; weights are drawn by a seed. The opset is 17 and the IR version
8 unless a model says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

_SEED = 20201104
_INPUTS_APART = 4
"""The IR version from which on weights are not listed among the inputs."""


class Made(NamedTuple):
    """A model to be made."""

    name: str
    graph: str
    """In the onnx package's text format, without the weights."""
    weights: Mapping[str, Any] = MappingProxyType({})
    """By name: a shape, drawn as 32-bit floats; or an array."""
    opset: int = 17
    ir: int = 8
    domains: tuple[str, ...] = ()
    """Further domains of operators, each as ``NAME:VERSION``."""
    external: bool = False
    """Whether the weights lie in a file beside the model."""
    values: dict[str, tuple[int, ...]] | None = None
    dims: dict[str, tuple[int, ...]] | None = None


def build(made: Made) -> onnx.ModelProto:
    """Return the model."""
    named = [("", str(made.opset)), *(each.split(":") for each in made.domains)]
    domains = ", ".join(f'"{name}" : {version}' for name, version in named)
    text = f"<ir_version: {made.ir}, opset_import: [{domains}]>\n{made.graph}"
    model: onnx.ModelProto = parser.parse_model(text)
    random = np.random.default_rng(_SEED)
    for name, weight in made.weights.items():
        if isinstance(weight, onnx.TensorProto):
            weight.name = name
            model.graph.initializer.append(weight)
        else:
            drawn = isinstance(weight, tuple)
            array = (random.standard_normal(weight) * 0.2).astype(np.float32) if drawn else weight
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    if made.ir < _INPUTS_APART:
        model.graph.input.extend(
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
            for each in model.graph.initializer
        )
    return model


def save(made: Made, path: Path) -> tuple[Path, ...]:
    """Write the model; return the files of external data beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = build(made)
    if not made.external:
        path.write_bytes(model.SerializeToString())
        return ()
    data = path.with_name("weights.bin")
    data.unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    return (data,)
