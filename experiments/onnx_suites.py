"""Every case of the test suites that the onnx package ships, through the real compiler.

``python -m mainspring.experiments.onnx_suites``, which ``make suites`` runs. Each case compiles and matches,
or is refused with a reason. Cases run in a process of their own, a fresh one every few hundred: one that dies
or hangs in native code is counted as crashed, and the others go on.
"""

from __future__ import annotations

import platform
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import typer
from onnx import numpy_helper

from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.errors import CompileError, ExecutableError, StoreError
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import MOST_ROWS, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.stock import StockSession
from mainspring.experiments.apart import Apart, Crashed
from mainspring.experiments.suite_cases import FOLDERS, Case, model_cases, node_cases, node_modules

MATCHES, REFUSED, DIFFERS, CRASHED = "matches", "refused", "differs", "crashed"
AS_IS, WITH_WEIGHTS = "as it is", "one input, the others weights"

BATCH_SIZES = (1, 2)

REASONS = (
    ("no axis for the rows, or no input", r"no axis for the rows|nothing to serve"),
    ("inputs of different batches", r"aren't all the same batch"),
    ("output without one row for each row", r"its first axis isn't the batch"),
    ("rows influence each other", r"depends on the other rows"),
    ("means something else with another batch", r"differs from stock ONNX Runtime's"),
    ("fails on some rows or batches", r"failed at batch size"),
    ("can't run with other batches", r"can't run \d+ rows at once"),
    ("batch of the exporter stays in a node", r"exporter's batch is in"),
    ("element type without a numpy type", r"must be dense tensors of"),
    ("dynamic dimension", r"is dynamic \("),
    ("control flow", r"is control flow"),
    ("random numbers", r"draws random numbers"),
    ("output is a constant or an input", r"is a constant or an input"),
    (
        "shape depends on values",
        r"depends? on the values|decide the shape of an output|shape for these inputs differs",
    ),
    ("version that can't be converted", r"IR version|the model (is )?of opset"),
    ("ONNX Runtime lacks the operator or type", r"ONNX Runtime refuses the model"),
    ("ONNX Runtime can't run it", r"ONNX Runtime can't run the model"),
)
"""Kinds of refusals, and what their texts have in common; the first that is found counts."""

OTHER = "other"


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a case."""

    suite: str
    name: str
    status: str
    form: str = AS_IS
    reason: str = ""
    """The kind of a refusal; where stock ONNX Runtime itself differs from the suite, that it does."""
    detail: str = ""
    seconds: float = 0.0


def try_case(case: Case, folder: Path) -> Outcome:
    """Compile the case as it is, or with one input; ``folder`` is for files and may be reused."""
    began = time.monotonic()
    inputs = len(case.data_sets[0][0])
    outcome = _try_form(case, case.model, AS_IS, list(range(inputs)), folder)
    if outcome.status == REFUSED and case.suite == "node" and inputs > 1:
        for served in range(inputs):
            model = _with_weights(case, served)
            other = None if model is None else _try_form(case, model, WITH_WEIGHTS, [served], folder)
            if other is not None and other.status != REFUSED:
                outcome = other
                break
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - began, 3))


def reason_of(text: str) -> str:
    """Return the kind of the refusal whose text this is."""
    return next((kind for kind, pattern in REASONS if re.search(pattern, text)), OTHER)


def _try_form(case: Case, model: bytes, form: str, served: list[int], folder: Path) -> Outcome:
    path = folder / "model.onnx"
    path.write_bytes(model)
    store = Store(folder / "store")
    try:
        manifest = compile_file(path, "case", store, _batch_sizes(model)).manifest
    except (CompileError, StoreError) as error:
        text = str(error)
        return Outcome(case.suite, case.name, REFUSED, form, reason_of(text), text)
    try:
        for inputs, expected in case.data_sets:
            arrays = [np.asarray(inputs[index]) for index in served]
            try:
                found = _run(store, manifest, arrays)
            except ExecutableError as error:
                return Outcome(case.suite, case.name, REFUSED, form, reason_of(str(error)), str(error))
            problem = _compare(case, found, expected)
            if problem:
                stock = StockSession(model).run(arrays)
                if _compare(case, stock, expected):
                    return Outcome(
                        case.suite,
                        case.name,
                        MATCHES,
                        form,
                        "stock ONNX Runtime differs from the suite",
                        problem,
                    )
                return Outcome(case.suite, case.name, DIFFERS, form, detail=problem)
    finally:
        shutil.rmtree(store.root, ignore_errors=True)
    return Outcome(case.suite, case.name, MATCHES, form)


def _batch_sizes(model: bytes) -> tuple[int, ...]:
    graph = onnx.ModelProto.FromString(model).graph
    first = [value.type.tensor_type.shape.dim[0].dim_value for value in graph.input if _rank(value)]
    return tuple(sorted({*BATCH_SIZES, *(size for size in first[:1] if 0 < size <= MOST_ROWS)}))


def _rank(value: onnx.ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _with_weights(case: Case, served: int) -> bytes | None:
    model = onnx.ModelProto.FromString(case.model)
    inputs = case.data_sets[0][0]
    for index, (value, array) in enumerate(zip(list(model.graph.input), inputs, strict=True)):
        if index == served:
            continue
        if value.type.WhichOneof("value") != "tensor_type" or not isinstance(array, np.ndarray | np.generic):
            return None
        element = value.type.tensor_type.elem_type
        if element not in _PLAIN:
            return None
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
        model.graph.input.remove(value)
    return bytes(model.SerializeToString())


_PLAIN = {
    element
    for element in onnx.helper.get_all_tensor_dtypes()
    if onnx.helper.tensor_dtype_to_np_dtype(element).isbuiltin == 1 and element != onnx.TensorProto.STRING
}


def _run(store: Store, manifest: Manifest, arrays: list[Any]) -> list[Any]:
    content = np.frombuffer(store.weights_path(manifest).read_bytes(), np.uint8)
    memory = aligned_array(content.shape, content.dtype)
    memory[:] = content
    bound = open_executable(store, manifest).bind(
        manifest.tensors, lambda offset: int(memory.ctypes.data) + offset
    )
    if manifest.whole:
        return [output[0] for output in bound.run_arrays(1, [array[None] for array in arrays])]
    return list(bound.run_arrays(len(arrays[0]), arrays))


def _compare(case: Case, found: list[Any], expected: list[Any]) -> str:
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        try:
            np.testing.assert_equal(ours.shape, theirs.shape)
            np.testing.assert_allclose(
                ours, theirs, rtol=case.relative_tolerance, atol=case.absolute_tolerance
            )
        except (AssertionError, TypeError) as error:
            return f"output {index}: {' '.join(str(error).split())[:300]}"
    return ""


CHUNK = 400
"""Cases after which a process is replaced."""

LONGEST_S = 400.0
"""Time for one case, after which it counts as crashed."""

TryCase = Callable[[Case, Path], Outcome]


def run_cases(
    cases: Sequence[Callable[[], Case]],
    function: TryCase = try_case,
    chunk: int = CHUNK,
    longest_s: float = LONGEST_S,
) -> Iterator[Outcome]:
    """Yield what becomes of each case, in order."""
    worker: Apart[Case, Outcome] | None = None
    try:
        for number, read in enumerate(cases):
            if worker is not None and number % chunk == 0:
                worker.close()
                worker = None
            worker = worker or Apart(function)
            case = read()
            try:
                outcome = worker.ask(case, longest_s)
            except Crashed as error:
                outcome = Outcome(case.suite, case.name, CRASHED, detail=str(error))
                worker.close()
                worker = None
            yield outcome
    finally:
        if worker is not None:
            worker.close()


def summarise(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the tables: counts for each suite, then the reasons of the refusals."""
    suites = sorted({outcome.suite for outcome in outcomes})
    lines = [
        f"{'suite':<20}{'cases':>7}{'match':>7}{'with weights':>14}{'refused':>9}{'differ':>8}{'crash':>7}"
    ]
    for suite in [*suites, "all"]:
        mine = [outcome for outcome in outcomes if suite in (outcome.suite, "all")]
        counts = Counter((outcome.status, outcome.form) for outcome in mine)
        by_status = Counter(outcome.status for outcome in mine)
        lines.append(
            f"{suite:<20}{len(mine):>7}{counts[MATCHES, AS_IS]:>7}{counts[MATCHES, WITH_WEIGHTS]:>14}"
            f"{by_status[REFUSED]:>9}{by_status[DIFFERS]:>8}{by_status[CRASHED]:>7}"
        )
    for status in (REFUSED, MATCHES):
        reasons = Counter(
            outcome.reason for outcome in outcomes if outcome.status == status and outcome.reason
        )
        lines += ["", f"{status}, and why"]
        lines += [f"{count:>7}  {reason}" for reason, count in reasons.most_common()]
    bad = [outcome for outcome in outcomes if outcome.status in (DIFFERS, CRASHED)]
    return [*lines, "", *(f"{case.status}: {case.suite}/{case.name}: {case.detail}" for case in bad)]


def main(
    limit: Annotated[int, typer.Option(help="Try about so many cases, evenly chosen; 0 is all.")] = 0,
    suite: Annotated[list[str] | None, typer.Option(help="Only this suite: node, light, simple...")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every case's outcome to this file.")] = None,
) -> None:
    """Try the suites and print what became of them; exit with 1 if a case differs or crashes."""
    wanted = suite or ["node", *FOLDERS]
    nodes = [(lambda case=case: case) for case in node_cases(node_modules() if "node" in wanted else [])]
    models = model_cases([folder for folder in FOLDERS if folder in wanted])
    cases: list[Callable[[], Case]] = [*chain(nodes, models)]
    cases = cases[:: max(1, len(cases) // limit)] if limit else cases
    print(
        f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}: {len(cases)} cases"
    )
    outcomes = []
    for outcome in run_cases(cases):
        outcomes.append(outcome)
        if len(outcomes) % 100 == 0:
            print(f"  {len(outcomes)} tried", flush=True)
    print("\n".join(summarise(outcomes)))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    if any(outcome.status in (DIFFERS, CRASHED) for outcome in outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
