"""The kind of a model's file, and the ONNX file that is made of it: `as_onnx`.

A file's name says its kind; what no kind has a claim to is read as ONNX. Formats that run code as they are
read (pickles, PyTorch's archives) are read with the user's trust alone, and never to find out what they are.
PyTorch numbers an exported program's open dimensions; here each is called after the first input and axis that
it stands at, as the compiler calls unnamed ones. Bounds that the author gave them are limits.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from mainspring import extras
from mainspring.compiler.artifact.errors import CompileError

PICKLES = (".joblib", ".pkl", ".pickle")
SKOPS = ".skops"
PROGRAM = ".pt2"

_ELSEWHERE = {
    "TensorFlow": (
        (".pb", ".h5", ".keras", ".tflite"),
        "`python -m tf2onnx.convert` makes an ONNX file of it",
    ),
    "XGBoost, LightGBM or CatBoost": (
        (".ubj", ".xgb", ".lgb", ".cbm"),
        "onnxmltools (CatBoost: `save_model(..., format='onnx')`) makes an ONNX file of it",
    ),
    "Core ML": ((".mlmodel", ".mlpackage"), "compile the model that it was made from"),
    "TensorRT": ((".plan", ".engine", ".trt"), "compile the ONNX file that it was built from"),
    "ONNX Runtime's own format": ((".ort",), "compile the ONNX file that it was made from"),
    "weights without a graph": (
        (".safetensors", ".gguf", ".npz", ".ckpt"),
        "the model's author can export the network with them, as ONNX or with torch.export",
    ),
    "PyTorch's weights or TorchScript": (
        (".pt", ".pth", ".bin"),
        "the model's author can write a program that is converted here: "
        "`torch.export.save(torch.export.export(model.eval(), inputs), 'model.pt2')`",
    ),
}
"""Formats that are converted elsewhere: the ends of their names, and what helps."""


class Origin(NamedTuple):
    """The file that a model comes from."""

    path: Path
    kind: str
    """Kind of the file, as in `Source.kind`."""
    sha256: str
    trusted: bool = False
    """True if it was read with the user's trust."""


class Converted(NamedTuple):
    """An ONNX file, and what is known beside it."""

    path: Path
    origin: Origin | None = None
    """None: it is the user's own file."""
    most: Mapping[str, int] = {}
    """Limits of open dimensions, by name."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""


@contextmanager
def as_onnx(path: Path, *, trust: bool = False) -> Iterator[Converted]:
    """Yield the ONNX file that ``path`` is, or that is made of it and lasts until the end.

    ``trust``: the user trusts whoever made the file with this machine. Raises `CompileError` for what can't
    be converted, or not without trust.
    """
    suffix = path.suffix.lower()
    if suffix not in (*PICKLES, SKOPS, PROGRAM):
        _refuse_foreign(path, suffix)
        yield Converted(path)
        return
    digest = _digest(path)
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        target = Path(folder) / "model.onnx"
        if suffix == PROGRAM:
            most, notes = convert(path, target, trust=trust)
        else:
            from mainspring.compiler.conversion.estimators import convert_estimator

            most, notes = {}, convert_estimator(path, target, trust=trust)
        kind = "program" if suffix == PROGRAM else "estimator"
        yield Converted(target, Origin(path, kind, digest, trust), most, notes)


def check_trust(path: Path, what: str, trust: bool) -> None:
    """Raise `CompileError` unless the user trusts the file; ``what`` says what kind it is."""
    if not trust:
        raise CompileError(
            f"{path} is {what}, and reading one can run any code that its author put there; `--trust` reads "
            "it, if you trust whoever made it with this machine"
        )


def install(distributions: str) -> str:
    """Return the command that installs distributions beside this one."""
    return f"{extras.installer(Path(sys.prefix))} {distributions}"


def last_line(error: BaseException) -> str:
    """Return an error's own sentence, which libraries put into many lines, and its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:500] if lines else 'no reason given'}"


def _refuse_foreign(path: Path, suffix: str) -> None:
    for what, (suffixes, advice) in _ELSEWHERE.items():
        if suffix in suffixes:
            raise CompileError(f"{path} is not ONNX but {what}, by its name; {advice}")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CompileError(f"can't read {path}: {error.strerror}") from error


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
