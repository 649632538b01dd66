"""PyTorch's exported programs (``torch.export.save``, ``.pt2``) as ONNX, through ``torch.onnx``.

PyTorch numbers a program's open dimensions; here each is called after the first input and axis that it stands
at, as the compiler calls unnamed ones. Bounds that the author gave them are limits.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.conversion.opening import check_trust, install, last_line

_MOST_SIZE = 1 << 20
"""Bounds above are PyTorch's way to say that there is none."""


def convert(path: Path, target: Path, *, trust: bool) -> tuple[dict[str, int], tuple[str, ...]]:
    """Write a program as ONNX; return limits of its open dimensions, by name, and sentences for the user.

    Raises `CompileError`.
    """
    check_trust(path, "a program of PyTorch, whose constants are pickled", trust)
    try:
        import onnxscript  # noqa: F401, which torch.onnx needs and does not bring
        import torch
    except ImportError as error:
        raise CompileError(
            f"{path} is a program of PyTorch, and to convert it takes torch and onnxscript ({error}): "
            f"`{install('torch onnxscript')}`; or the model's author can export it as ONNX"
        ) from error
    with _quiet():
        try:
            program = torch.export.load(str(path))
        except Exception as error:
            raise CompileError(
                f"PyTorch {torch.__version__} can't read {path} ({last_line(error)}); try the version that "
                "wrote it"
            ) from error
        try:
            torch.onnx.export(program, dynamo=True, verbose=False).save(str(target))
        except Exception as error:
            raise CompileError(
                f"PyTorch {torch.__version__} can't write {path} as ONNX ({last_line(error)}); try a newer "
                "version of torch, or the model's author can export it with other operators"
            ) from error
    model = onnx.load(str(target), load_external_data=False)
    names = _rename(model)
    # Tensors that PyTorch wrote beside the file stay there.
    target.write_bytes(model.SerializeToString())
    return _limits(program.range_constraints, names), ()


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch says of packages that it does without."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _rename(model: onnx.ModelProto) -> dict[str, str]:
    """Name open dimensions of inputs besides the batch by input and axis; return these by PyTorch's names."""
    names: dict[str, str] = {}
    batches = {
        value.type.tensor_type.shape.dim[0].dim_param
        for value in model.graph.input
        if value.type.tensor_type.shape.dim
    }
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param and dim.dim_param not in batches:
                dim.dim_param = names.setdefault(dim.dim_param, f"{value.name}.{axis}")
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param not in batches:
                dim.dim_param = names.get(dim.dim_param, "")
    # Shapes in between have the old names.
    del model.graph.value_info[:]
    return names


def _limits(constraints: Mapping[Any, Any], names: Mapping[str, str]) -> dict[str, int]:
    """Return the upper bounds that the program's author gave."""
    bounds = {
        names[str(symbol)]: bound.upper for symbol, bound in constraints.items() if str(symbol) in names
    }
    return {name: int(upper) for name, upper in bounds.items() if upper.is_number and upper <= _MOST_SIZE}
