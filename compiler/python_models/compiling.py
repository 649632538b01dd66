"""Compiling a Python model: its code is run, checked and measured as a worker will run it, and stored.

It runs on rows that its `Predictor.sample` returns, or on zeros, at every batch size, and in the largest and
the smallest bucket of sizes. Rows that are said to be independent are compared with the same rows alone.
There is nothing else to compare it with. Its artifact has no weights: what the process needs is its own
memory, not pages of the worker's, and so its LOAD copies nothing. ``memory_mb`` bounds it instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring import extras
from mainspring.compiler.artifact.arrays import Arrays, BatchArrays, Sizes, tiled
from mainspring.compiler.artifact.errors import CompileError, ExecutableError, StoreError, ValuesError
from mainspring.compiler.artifact.manifest import (
    CPU,
    FOR_ANY,
    PROOF_VERSION,
    PYTHON,
    ExecutableInfo,
    Independence,
    IoTensor,
    Manifest,
    Measured,
    PythonFacts,
    SampleRow,
    Source,
    Verification,
)
from mainspring.compiler.artifact.profiles import put as put_beside
from mainspring.compiler.artifact.python_folder import (
    CODE,
    DESCRIPTION,
    facts_of,
    interpreter,
    pack,
    unpacked,
)
from mainspring.compiler.artifact.python_process import PythonProcess
from mainspring.compiler.artifact.store import Store, check_name
from mainspring.compiler.artifact.target import target_of
from mainspring.compiler.choosing.durations import Effort, Timing, profile, repeat
from mainspring.compiler.pipeline import Compiled
from mainspring.compiler.python_models.description import DEPENDENT, OWN, Description, read_description
from mainspring.compiler.python_models.environment import python_for
from mainspring.messages.model import Profile, TensorSpec, bucket_name

_EFFORT = Effort(seconds=0.4, fewest=3, most=30, warm_up=2)
_SHORT = Effort(seconds=0.1, fewest=2, most=10, warm_up=1)
_TOLERANCE = 1e-3
"""Difference of a row in a batch from the row alone, in parts of the largest element."""
_MOST_SAMPLE_BYTES = 16 << 20
"""Most bytes of a sample's row, which is stored in the artifact."""
_MISSING = re.compile(r"No module named '([\w.]+)'")
_LOAD_NS = 10_000
"""Seed duration of a LOAD that copies nothing."""
_TAIL_BYTES = 2000
_DEPENDENT = 'its model.toml says rows = "dependent"'


class _Opened(NamedTuple):
    """A process that is measured."""

    process: PythonProcess
    described: Description
    info: ExecutableInfo
    rows: Arrays
    """Rows that it takes, of each input; zeros if it names none."""


def compile_folder(folder: Path, name: str, store: Store, python: str = "", zoo: str = "") -> Compiled:
    """Compile the folder of a Python model into ``store``; raise `CompileError` or `StoreError`.

    ``python`` is the path of the Python that it is to have, ``zoo`` the zoo's name of it: what is stored of
    that is kept.
    """
    check_name(name)
    store.check_writable()
    began = time.monotonic()
    described = _described(folder)
    made = python_for(store, folder, python)
    whole = described.rows == OWN
    facts = PythonFacts(name, described.memory_bytes, described.start_ns, described.timeout_ns, made, whole)
    content = pack(folder, facts)
    info = _info(described, facts, hashlib.sha256(content).hexdigest())
    if zoo and (manifest := _kept(store, name, info.executable)):
        return Compiled(manifest, shared=True, kept=True)
    kind, path = ("zoo", zoo) if zoo else (PYTHON, str(folder.resolve()))
    source = Source(kind, path, info.executable, engine=PYTHON, python=python)
    manifest = _manifest(name, described, info, source, store)
    store.put_executable(content, info)
    try:
        measured, sample = _tried(described, info, manifest, store)
    except ExecutableError as error:
        raise CompileError(f"{error}{_hint(str(error))}") from error
    info = msgspec.structs.replace(info, measured=measured, sample=sample)
    store.put_executable(content, info)
    shaped = measured.shaped_ns
    profiles = {CPU: Profile(measured.infer_ns, _LOAD_NS, shaped, measured.spread)}
    manifest = put_beside(store, msgspec.structs.replace(manifest, profiles=profiles), adds=False)
    return Compiled(manifest, shared=False, seconds=time.monotonic() - began)


def _kept(store: Store, name: str, executable: str) -> Manifest | None:
    """Return the manifest of just this model if the store has it whole."""
    try:
        manifest = store.manifest(name)
        store.verify(name)
    except StoreError:
        return None
    return manifest if manifest.executable == executable else None


def _described(folder: Path) -> Description:
    for name in (DESCRIPTION, CODE):
        if not (folder / name).is_file():
            raise CompileError(
                f"{folder} has no {name}: a Python model is a folder with {DESCRIPTION}, which says what its "
                f"tensors are, and {CODE}, with a class Predictor"
            )
    try:
        return read_description((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"{folder / DESCRIPTION} can't be read: {error}") from error
    except CompileError as error:
        raise CompileError(f"{folder}: {error}") from None


def _info(described: Description, facts: PythonFacts, executable: str) -> ExecutableInfo:
    return ExecutableInfo(
        executable,
        FOR_ANY,
        "",
        (),
        (),
        described.inputs,
        described.outputs,
        engine=PYTHON,
        symbols=described.symbols,
        python=facts,
    )


def _manifest(
    name: str, described: Description, info: ExecutableInfo, source: Source, store: Store
) -> Manifest:
    """Return the model's manifest, without durations."""
    weights_hash, weights_bytes = store.put_weights(())
    return Manifest(
        name=name,
        executable=info.executable,
        weights_hash=weights_hash,
        weights_bytes=weights_bytes,
        extents=(),
        tensors=(),
        inputs=tuple(map(_seen, described.inputs)),
        outputs=tuple(map(_seen, described.outputs)),
        batch_sizes=described.batch_sizes,
        profiles={},
        source=source,
        verification=Verification(0.0, 0.0, 0.0, 0),
        engine=PYTHON,
        independence=Independence(PROOF_VERSION, _DEPENDENT if described.rows == DEPENDENT else ""),
        whole=described.rows == OWN,
        symbols=described.symbols,
        target=target_of(PYTHON, CPU, FOR_ANY, ""),
    )


def _seen(tensor: IoTensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, tensor.shape, tensor.open, tensor.varies)


def _tried(
    described: Description, info: ExecutableInfo, manifest: Manifest, store: Store
) -> tuple[Measured, tuple[SampleRow, ...]]:
    """Run the model; return its durations and a row on which it runs. Raises `ExecutableError`."""
    folder, python = unpacked(store, manifest), interpreter(store, facts_of(info))
    most = described.batch_sizes[-1]
    with tempfile.TemporaryFile() as log:
        process = PythonProcess(info, most, folder, python, log.fileno())
        try:
            process.ready()
            rows, given = _rows(process, described)
            opened = _Opened(process, described, info, rows)
            try:
                measured = _measure(opened)
            except ValuesError as error:
                raise ExecutableError(_no_sample(error, given=given)) from error
            if described.batch_sizes[-1] > 1:
                _compare(opened)
        except ExecutableError as error:
            raise ExecutableError(f"{error}{_printed(log.fileno(), str(error))}") from error
        finally:
            process.close()
    sample = tuple(SampleRow(array[:1].shape, array[:1].tobytes()) for array in rows) if given else ()
    if sum(len(each.data) for each in sample) > _MOST_SAMPLE_BYTES:
        raise CompileError(
            f"a row of sample() has more than {_MOST_SAMPLE_BYTES:,} bytes: return a smaller one"
        )
    return measured, sample


def _rows(process: PythonProcess, described: Description) -> tuple[Arrays, bool]:
    """Return rows of each input, with an axis of rows in front, and whether `Predictor.sample` gave them."""
    given = process.sample()
    if given is None:
        return [np.zeros((1, *tensor.shape), tensor.dtype) for tensor in described.inputs], False
    whole = described.rows == OWN
    arrays: Arrays = [array[np.newaxis] if whole else array for array in given]
    if len({len(array) for array in arrays}) > 1 or not len(arrays[0]):
        raise ExecutableError(f"sample() gives {[len(each) for each in arrays]} rows of the inputs")
    for tensor, array in zip(described.inputs, arrays, strict=True):
        opened = {dim.axis for dim in tensor.open}
        fits = len(array.shape) == 1 + len(tensor.shape) and all(
            0 < size <= most if axis in opened else size == most
            for axis, (size, most) in enumerate(zip(array.shape[1:], tensor.shape, strict=True))
        )
        if not fits:
            raise ExecutableError(
                f"sample() gives the input {tensor.name!r} in the shape {list(array.shape[whole:])}; "
                f"model.toml says {['rows', *tensor.shape][whole:]}, rows first"
            )
    return arrays, True


def _batch(opened: _Opened, size: int, sizes: Sizes) -> BatchArrays:
    """Return a batch of the model's rows."""
    batch = BatchArrays(opened.info, size, sizes)
    for into, rows in zip(batch.inputs, opened.rows, strict=True):
        into[...] = tiled(rows, into.shape) if rows.size else rows
    return batch


def _measure(opened: _Opened) -> Measured:
    """Return how long batches take, at the sizes' limits and in other buckets."""
    described = opened.described

    def at(size: int, sizes: Sizes, effort: Effort = _SHORT) -> Timing:
        batch = _batch(opened, size, sizes)

        def once() -> int:
            begin_ns = time.perf_counter_ns()
            batch.run(opened.process)
            return time.perf_counter_ns() - begin_ns

        return Timing.of(repeat(once, effort))

    if described.symbols:
        found = profile(lambda size, sizes: at(size, sizes).seed_ns, described.symbols, described.batch_sizes)
        limits = tuple(symbol.limit for symbol in described.symbols)
        return Measured(
            infer_ns=found[limits],
            shaped_ns={bucket_name(ceilings): seeds for ceilings, seeds in found.items()},
        )
    timings = {size: at(size, (), _EFFORT) for size in described.batch_sizes}
    spread = timings[1].spread if described.rows == OWN else 0.0
    return Measured(infer_ns={size: timing.seed_ns for size, timing in timings.items()}, spread=spread)


def _compare(opened: _Opened) -> None:
    """Raise `ExecutableError` if a row's outputs differ in a batch from those of the row alone."""
    most, limits = opened.described.batch_sizes[-1], tuple(each.limit for each in opened.described.symbols)
    together = _batch(opened, most, limits)
    together.run(opened.process)
    # All rows alike would show nothing: the last are zeros, unless the model refuses those.
    kept = [array[-1:].copy() for array in together.inputs]
    for array in together.inputs:
        array[-1:] = np.zeros((), array.dtype)
    try:
        together.run(opened.process)
    except ExecutableError:
        for array, last in zip(together.inputs, kept, strict=True):
            array[-1:] = last
        together.run(opened.process)
    for row in range(min(most, len(opened.rows[0]) + 1)):
        alone = BatchArrays(opened.info, 1, limits)
        alone.fill([each[row : row + 1] for each in together.inputs])
        alone.run(opened.process)
        for tensor, one, all_rows in zip(opened.info.outputs, alone.found, together.outputs, strict=True):
            if not _close(one[0], all_rows[row]):
                raise ExecutableError(
                    f"the output {tensor.name!r} of row {row} in a batch of {most} differs from that of the "
                    'row alone: say rows = "dependent" in model.toml, so that no two requests share a batch'
                )


def _close(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    largest = float(np.max(np.abs(np.nan_to_num(one.astype(np.float64))), initial=0.0))
    return bool(np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True))


def _no_sample(error: ValuesError, *, given: bool) -> str:
    on = "the rows of its sample()" if given else "zeros"
    hint = "" if given else "; give Predictor a method sample() that returns rows which it takes"
    return f"predict() refuses {on}: {error}{hint}"


def _hint(text: str) -> str:
    """Return what helps against an error, as the end of a sentence; empty if that is not known."""
    missing = _MISSING.search(text)
    if missing is None:
        return ""
    extra = extras.extra_of(missing[1])
    return f"; {f'`{extras.command(extra)}`' if extra else 'a line in requirements.txt'} brings it"


def _printed(log: int, known: str) -> str:
    """Return the last line that the process wrote, as the end of a sentence; empty if it is ``known``."""
    size = os.fstat(log).st_size
    text = os.pread(log, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"; the last line that it wrote: {lines[-1]!r}" if lines and lines[-1] not in known else ""
