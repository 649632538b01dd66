"""``make pipelines``: how many of fifty pipelines take many rows, answered right.

Each is exported by skl2onnx, compiled, and run as a worker runs it, on rows that it was not fitted on, in
batches of every size. Each row's outputs are compared with those of ONNX Runtime on the file for that row
alone, and the first one with scikit-learn's answer, which skl2onnx does not always keep.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import onnxruntime
import typer

from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.layout import Arena
from mainspring.compiler.reading.replaced_operators import give_locale
from mainspring.experiments.pipelines.made import PIPELINES, Pipeline, as_fitted, exported, inputs_of

WANTED = 45
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


class Outcome(NamedTuple):
    """Outcome of one pipeline."""

    name: str
    rows: int = 0
    wrong: str = ""
    same: float = 1.0
    """The part of rows that are answered as by scikit-learn."""
    why: str = ""


def tried(pipeline: Pipeline, folder: Path) -> Outcome:
    """Return what becomes of a pipeline."""
    fitted, model = exported(pipeline)
    path = folder / f"{pipeline.name}.onnx"
    path.write_bytes(model.SerializeToString())
    store = Store(folder / "store")
    try:
        compiled = compile_file(path, pipeline.name, store)
    except Exception as error:  # One may cost no other its row of the table.
        return Outcome(pipeline.name, why=str(error))
    manifest = compiled.manifest
    why = manifest.unshared or compiled.whole_because
    if manifest.whole or why:
        return Outcome(pipeline.name, 1, why=why)
    give_locale(model.graph)
    wrong, same = _compared(pipeline, fitted, model.SerializeToString(), _runner(store, manifest), manifest)
    return Outcome(pipeline.name, manifest.batch_sizes[-1], wrong, same)


def _compared(
    pipeline: Pipeline, fitted: Any, content: bytes, run: Any, manifest: Manifest
) -> tuple[str, float]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    total = sum(manifest.batch_sizes)
    inputs = inputs_of(pipeline.data, total, seed=2)
    begin, labels = 0, []
    for size in manifest.batch_sizes:
        part = {name: array[begin : begin + size] for name, array in inputs.items()}
        found = run([part[spec.name] for spec in manifest.inputs])
        for row in range(size):
            alone = session.run(None, {name: array[row : row + 1] for name, array in part.items()})
            for spec, ours, theirs in zip(manifest.outputs, found, alone, strict=True):
                if not _same(ours[row], _plain(theirs)[0]):
                    return f"output {spec.name!r}, row {row} of {size}: {ours[row]} instead of {theirs}", 0.0
        labels.append(np.asarray(found[0]))
        begin += size
    asked = fitted.predict if hasattr(fitted, "predict") else fitted.transform
    right = np.asarray(asked(as_fitted(pipeline.data, inputs)))
    ours = np.concatenate(labels).reshape(right.shape)
    return "", float(np.mean([_same(*pair) for pair in zip(ours, right, strict=True)]))


def _runner(store: Store, manifest: Manifest) -> Any:
    arena = Arena(np.fromfile(store.weights_path(manifest), np.uint8), manifest.extents)
    arena.load()
    bound = open_executable(store, manifest).bind(manifest.tensors, arena.address_of)
    return lambda arrays: bound.run_arrays(len(arrays[0]), [_texts(each) for each in arrays])


def _texts(array: Any) -> Any:
    return np.char.encode(array.astype(str)) if array.dtype.kind == "O" else array


def _plain(output: Any) -> Any:
    return np.array([[*each.values()] for each in output]) if isinstance(output, list) else np.asarray(output)


def _same(ours: Any, theirs: Any) -> bool:
    if np.asarray(ours).dtype.kind == "S":
        return bool(np.array_equal(np.char.decode(ours), np.asarray(theirs).astype(str)))
    return bool(np.allclose(ours, np.asarray(theirs, float), **_TOLERANCE, equal_nan=True))


def main(only: Annotated[str, typer.Option(help="Only those whose name has this in it.")] = "") -> None:
    """Try all, print the table; exit with 1 if too few take many rows, or if an answer is wrong."""
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(3)
    chosen = [each for each in PIPELINES if only in each.name]
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for pipeline in chosen:
            outcome = tried(pipeline, Path(folder))
            found.append(outcome)
            said = outcome.why or f"right; {outcome.same:.0%} as scikit-learn"
            said = f"WRONG: {outcome.wrong}" if outcome.wrong else said
            typer.echo(f"{outcome.name:26} {outcome.rows:3} rows  {said[:160]}")
    many = sum(each.rows > 1 and not each.wrong for each in found)
    typer.echo(f"{many} of {len(found)} take many rows, each answered right")
    short = many < WANTED if len(chosen) == len(PIPELINES) else many < len(chosen)
    if short or any(each.wrong for each in found):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
