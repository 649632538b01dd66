"""Compiling an ONNX model to an artifact in a store: start reading the compiler here.

``reading`` reads the file; ``shapes``, ``versions``, ``normalise`` and ``batch`` give the model one form;
``stock`` has ONNX Runtime optimise it; ``blocked`` lays out weights that it would pack in every run;
``split`` takes the weights out; ``layout`` finds places for them; ``verify`` compares outputs; ``compiled``
measures durations; ``artifact/store`` stores the result:
``candidates`` does these three for one engine.
``compiled`` also has the differences between engines: for ``tvm`` the folder of that name does what ``stock``
and ``split`` do for ``onnxruntime``. A model that can't be served, or whose outputs differ, is a
`CompileError` and is not stored. If the faster engine is requested, ``choice`` decides which engine that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import onnx

from mainspring.compiler.artifact import op_libraries
from mainspring.compiler.artifact.errors import CannotRun, CompileError, NoRows, NoSample, RowsMix, let_go
from mainspring.compiler.artifact.manifest import (
    CPU,
    CUDA,
    FP32,
    MOST_ROWS,
    PRECISIONS,
    TVM,
    Independence,
    Manifest,
    Source,
)
from mainspring.compiler.artifact.plan import arch_number
from mainspring.compiler.artifact.store import Store, check_name
from mainspring.compiler.choosing.candidates import Task, candidate_for, choose, put, seed_profiles
from mainspring.compiler.choosing.durations import AUTO, Judge
from mainspring.compiler.choosing.tuning import Tuner
from mainspring.compiler.conversion.opening import Origin
from mainspring.compiler.independence.step import ANY_ROW
from mainspring.compiler.program.compiled import MAKERS, Target
from mainspring.compiler.reading.contents import beside
from mainspring.compiler.reading.defaults import NO_DEFAULTS, Defaults, check_whole, take_defaults
from mainspring.compiler.reading.given_shapes import Shapes, fix_shapes
from mainspring.compiler.reading.model_file import read_model
from mainspring.compiler.reading.normalise import CONTROL_FLOW, graphs_of
from mainspring.compiler.reading.operator_libraries import apart, in_use, needed_by, use
from mainspring.compiler.reference import Prepared
from mainspring.compiler.rows.row_axes import (
    IN_FRONT,
    RowAxes,
    RowsElsewhere,
    find_row_axes,
    move_rows,
    moved_shapes,
    put_rows_first,
)
from mainspring.compiler.sizes.sample_forms import HINT, NO_SAMPLES, NOTHING, Described, Samples
from mainspring.compiler.sizes.varying import values_decide
from mainspring.compiler.unverified import Unverified
from mainspring.messages.choices import one_of
from mainspring.messages.model import MOST_TEXT_BYTES, TEXT_BYTES
from mainspring.messages.sequencing import Sequencing

_OLDEST_TENSOR_CORES = 80
"""The oldest architecture whose tensor cores have the instructions of both precisions."""

BATCH_SIZES = (1, 2, 4, 8, 16)
"""Default batch sizes of a model (Clockwork, section 5.1)."""

DEFAULT_TARGET = Target()


class Compiled(msgspec.Struct, frozen=True):
    """The result of a compilation."""

    manifest: Manifest
    shared: bool
    """True if the executable was in the store already, from another model."""
    kept: bool = False
    """True if the model was in the store already, so that nothing was done."""
    repaired: tuple[str, ...] = ()
    """Nodes whose baked batch was replaced."""
    located: tuple[str, ...] = ()
    """Nodes that were given a locale, for the file names none."""
    whole_because: str = ""
    """Reason why the model is served whole, if that was not asked for."""
    optimised: str = ""
    """Description of how far the model is optimised, if full optimisation would fail or change answers."""
    engines: dict[str, str] = {}
    """Description of each engine's performance, if the faster engine was requested."""
    smaller: bool = False
    """True if batch sizes were left out that would need too much memory for activations."""
    seconds: float = 0.0
    """Duration of the compilation, with comparing and measuring."""


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """Return the batch sizes in a text such as ``1,2,4``; raise `CompileError` for other texts."""
    try:
        return check_batch_sizes([int(part) for part in text.split(",")])
    except ValueError:
        raise CompileError(
            f"batch sizes {text!r} aren't numbers separated by commas, such as 1,2,4"
        ) from None


def check_batch_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes, ascending; raise `CompileError` if one is impossible."""
    if not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > MOST_ROWS:
        raise CompileError(
            f"batch sizes {list(batch_sizes)} can't be: give one or more numbers from 1 to {MOST_ROWS}"
        )
    return tuple(sorted({*batch_sizes}))


def compile_file(
    path: Path,
    name: str,
    store: Store,
    batch_sizes: Sequence[int] | None = None,
    shapes: Shapes | None = None,
    target: Target = DEFAULT_TARGET,
    judge: Judge | None = None,
    whole: bool | None = None,
    most: Mapping[str, int] | None = None,
    origin: Origin | None = None,
    pad: Mapping[str, float] | None = None,
    described: Described = NOTHING,
    text_bytes: int = TEXT_BYTES,
    or_fewer: bool = False,
) -> Compiled:
    """Compile an ONNX file into ``store`` as ``name``; raise `CompileError` or `StoreError`.

    ``batch_sizes`` and ``or_fewer`` are `compile_model`'s.
    ``shapes`` fixes dynamic dimensions of inputs. If ``whole``, shapes have no axis for rows; if it is None,
    where no such axis can be found, and where the file fixes a batch that can't be opened or whose rows
    aren't proven independent.
    ``judge`` is `compile_model`'s; ``most`` are limits of open dimensions, by name; ``origin`` is what the
    ONNX file was converted from; ``pad`` are values with which inputs that have some may be padded, so that
    requests of different sizes share executions; ``described`` is
    what sequences of requests are, if they come in such; ``text_bytes`` how long each text may be.
    """
    check_name(name)
    check_target_names(target, judge)
    if not 1 <= text_bytes <= MOST_TEXT_BYTES:
        raise CompileError(f"texts can't have {text_bytes:,} bytes each: give 1 to {MOST_TEXT_BYTES:,}")
    sizes = None if batch_sizes is None else check_batch_sizes(batch_sizes)
    task = partial(
        _compile_file,
        *(path, name, store, sizes, shapes, target, judge, most, origin, pad),
        *(described, text_bytes, or_fewer),
    )
    with apart(), beside(store.temporary):
        try:
            return _by_rows_or_whole(task, whole)
        except NoSample as error:
            if not described.unverified:
                raise
            return _on_word(task, whole, error)


def _on_word(task: Callable[..., Compiled], whole: bool | None, error: NoSample) -> Compiled:
    """Compile a model that runs on no sample, as ``error`` says, without a run."""
    why = str(error).removesuffix(f"; {HINT}")
    if whole is False:
        raise CompileError(
            f"{why}; unverified it can be served whole alone: leave out `--batch-sizes`, or say "
            "max_batch_size: 0 and whole shapes as dims in config.pbtxt"
        ) from error
    let_go(error)
    return msgspec.structs.replace(task(whole=True, unverified=True), whole_because=why)


def _by_rows_or_whole(task: Callable[..., Compiled], whole: bool | None) -> Compiled:
    """Compile as `compile_file` says of ``whole``."""
    try:
        return _by_rows(task, whole)
    except (NoRows, CannotRun) as error:
        if whole is not None:
            raise
        let_go(error)
        try:
            compiled = task(whole=True)
        except CompileError as second:
            if isinstance(error, CannotRun):
                raise error from second
            kind = NoSample if isinstance(second, NoSample) else CompileError
            raise kind(f"{error}; but that fails too: {second}") from error
        return msgspec.structs.replace(compiled, whole_because=str(error).removesuffix(f"; {HINT}"))


def _by_rows(task: Callable[..., Compiled], whole: bool | None) -> Compiled:
    """Compile as `compile_file` says of ``whole``, by the rows where the model has them; raise `NoRows`."""
    if whole:
        return task(whole=True)
    first = partial(task, whole=False, or_whole=whole is None)
    try:
        return first(or_elsewhere=True)
    except RowsElsewhere as found:
        axes = found.axes
    try:
        return task(whole=False, axes=axes)
    except CompileError as error:
        # Runs contradict what the rules prove. What is wrong with the model itself is found again.
        let_go(error)
        return first()


def _compile_file(
    path: Path,
    name: str,
    store: Store,
    sizes: tuple[int, ...] | None,
    shapes: Shapes | None,
    target: Target,
    judge: Judge | None,
    most: Mapping[str, int] | None,
    origin: Origin | None,
    pad: Mapping[str, float] | None,
    described: Described,
    text_bytes: int,
    or_fewer: bool,
    *,
    whole: bool,
    or_whole: bool = False,
    or_elsewhere: bool = False,
    unverified: bool = False,
    axes: RowAxes = IN_FRONT,
) -> Compiled:
    """Compile by the rows on ``axes``; if ``or_elsewhere``, raise `RowsElsewhere` for rows on other axes."""
    model, digest = read_model(path)
    use(needed_by(model, described.libraries))
    defaults = take_defaults(model, described.optional) if whole or or_whole or described.optional else {}
    check_whole(defaults, whole=whole)
    elsewhere = partial(_rows_elsewhere, path, shapes or {}, most or {}, described)
    moved = not whole and put_rows_first(model, described.sequencing, shapes or ())
    move_rows(model, axes)
    fix_shapes(model, moved_shapes(shapes or {}, axes), whole=whole)
    store.check_writable()
    file = origin or Origin(path, "onnx", digest)
    source = _source_of(file, shapes, target, most, pad, described, text_bytes, whole=whole)
    task = partial(compile_model, model, name, store, sizes, source, target=target, judge=judge, axes=axes)
    try:
        return task(
            or_whole=or_whole,
            or_fewer=or_fewer,
            sequencing=described.sequencing,
            samples=described.samples,
            defaults=defaults,
            elsewhere=elsewhere if or_elsewhere else None,
            unverified=unverified,
        )
    except CompileError as error:
        if not moved or isinstance(error, RowsElsewhere):
            raise
        raise NoRows(f"with the rows of its states in front, {error}") from error


def _source_of(
    file: Origin,
    shapes: Shapes | None,
    target: Target,
    most: Mapping[str, int] | None,
    pad: Mapping[str, float] | None,
    described: Described,
    text_bytes: int,
    *,
    whole: bool,
) -> Source:
    return Source(
        file.kind,
        str(file.path.resolve()),
        file.sha256,
        shapes=dict(shapes or {}),
        engine=target.engine,
        device=target.device,
        precision=target.precision,
        whole=whole,
        most=dict(most or {}),
        trusted=file.trusted,
        pad=dict(pad or {}),
        text_bytes=text_bytes,
        sequences=described.options,
        libraries=op_libraries.entries() if in_use().libraries else (),
    )


def _rows_elsewhere(path: Path, shapes: Shapes, most: Mapping[str, int], described: Described) -> None:
    """Raise `RowsElsewhere` if the rows of the file's model are proven to be on other axes than the first."""
    model, _ = read_model(path)
    put_rows_first(model, described.sequencing, shapes)
    axes = find_row_axes(model, shapes, most)
    if axes is not None:
        raise RowsElsewhere(axes)


def compile_model(
    model: onnx.ModelProto,
    name: str,
    store: Store,
    batch_sizes: tuple[int, ...] | None,
    source: Source,
    quick: bool = False,
    target: Target = DEFAULT_TARGET,
    judge: Judge | None = None,
    or_whole: bool = False,
    sequencing: Sequencing | None = None,
    elsewhere: Callable[[], None] | None = None,
    axes: RowAxes = IN_FRONT,
    or_fewer: bool = False,
    samples: Samples = NO_SAMPLES,
    defaults: Defaults = NO_DEFAULTS,
    unverified: bool = False,
) -> Compiled:
    """Compile a model into ``store``.

    It is compared with stock ONNX Runtime at every batch size; if ``quick``, and another one with the same
    executable was compared, only at the smallest two. If the rows are not proven to be independent, it is
    compiled for one row, and its manifest names the node. If ``source.whole``, it has no axis for rows.
    ``batch_sizes`` of None are the default ones; of these, and of any if ``or_fewer``, those are left out
    whose activations need more than 2 GiB. For the engine ``auto``, ``judge`` measures for other devices.
    Clients have the rows on ``axes``, ``model`` in front; ``elsewhere`` is called where it has none, or mixes
    them. ``unverified``: no run is to be tried. Raises `CompileError` or `StoreError`; if ``or_whole``,
    `NoRows` where it can be whole.
    """
    begin = time.monotonic()
    with beside(store.temporary):
        check_target_names(target, judge)
        if target.device == CUDA and target.tuner is None:
            target = msgspec.structs.replace(target, tuner=Tuner(store))
        wanted = batch_sizes or BATCH_SIZES
        prepared: Prepared
        if unverified:
            prepared = Unverified(model, most=source.most, text_bytes=source.text_bytes)
        else:
            fewer = or_fewer or not batch_sizes
            prepared = _prepared(model, wanted[-1], fewer, source, elsewhere, axes, samples)
        independence = prepared.independence
        alone = prepared.whole or independence.mixes
        sizes = (1,) if alone else tuple([size for size in wanted if size <= prepared.most_rows])
        task = Task(name, store, sizes, source, quick, target, independence, sequencing, axes, defaults)
        if or_whole and independence.mixes:
            _check_one_batch(model, prepared)
        compiled = _with_rows(model, prepared, task, judge, or_whole=or_whole)
    return msgspec.structs.replace(compiled, seconds=time.monotonic() - begin)


def _check_one_batch(model: onnx.ModelProto, prepared: Prepared) -> None:
    """Raise `NoRows` if the file fixes its batch, names first axes differently, or has indices of rows."""
    mixes = prepared.independence.mixes
    if prepared.fixed_rows > 1:
        raise NoRows(_why_whole(prepared, mixes))
    if mixes.endswith(ANY_ROW):
        raise NoRows(mixes)
    names = {dims[0].dim_param for each in model.graph.input if (dims := each.type.tensor_type.shape.dim)}
    if len(names) > 1:
        raise NoRows(f"the inputs' first axes are {', '.join(sorted(names))}, so no batch; {mixes}")


def _with_rows(
    model: onnx.ModelProto, prepared: Prepared, task: Task, judge: Judge | None, *, or_whole: bool
) -> Compiled:
    """Compile as `_by_proof_or_samples`; raise `NoRows` where only values say what shapes tensors have."""
    try:
        return _by_proof_or_samples(prepared, task, judge, or_whole=or_whole)
    except CompileError as error:
        if not or_whole or isinstance(error, NoRows | CannotRun) or not values_decide(model):
            raise
        raise NoRows(f"values of inputs decide the shapes of tensors, and {error}") from error


def _by_proof_or_samples(prepared: Prepared, task: Task, judge: Judge | None, *, or_whole: bool) -> Compiled:
    """Compile as the proof about rows says, or as samples show that contradict it."""
    try:
        return _compiled(prepared, task, judge)
    except CompileError as error:
        if or_whole and prepared.fixed_rows:
            raise NoRows(_why_whole(prepared, str(error))) from error
        if not isinstance(error, RowsMix) or task.axes != IN_FRONT:
            raise
        let_go(error)
        found = Independence(task.independence.version, str(error))
        return _compiled(prepared, task._replace(batch_sizes=(1,), independence=found), judge)


def _prepared(
    model: onnx.ModelProto,
    rows: int,
    or_fewer: bool,
    source: Source,
    elsewhere: Callable[[], None] | None,
    axes: RowAxes,
    samples: Samples,
) -> Prepared:
    """Return the model ready to be optimised; raise `NoRows` if it has none, or mixes those on ``axes``.

    ``elsewhere`` is called if those in front are none, or mixed.
    """
    whole = source.whole and axes == IN_FRONT
    most, text_bytes = source.most, source.text_bytes
    of_source = partial(Prepared, whole=whole, most=most, text_bytes=text_bytes, samples=samples)
    try:
        prepared = of_source(model, rows, or_fewer=or_fewer)
    except NoRows:
        if elsewhere is not None:
            elsewhere()
        raise
    if prepared.independence.mixes and elsewhere is not None:
        elsewhere()
    flow = next(filter(graphs_of, model.graph.node), None)
    if prepared.independence.mixes and not whole and flow is not None:
        raise NoRows(f"{prepared.independence.mixes}; node {flow.name!r} ({flow.op_type}) is {CONTROL_FLOW}")
    if prepared.independence.mixes and axes != IN_FRONT:
        raise NoRows(prepared.independence.mixes)
    return prepared


def _why_whole(prepared: Prepared, reason: str) -> str:
    return f"the file fixes a batch of {prepared.fixed_rows}, which can't be opened: {reason}"


def _compiled(prepared: Prepared, task: Task, judge: Judge | None) -> Compiled:
    if task.target.engine == AUTO:
        chosen, profiles, descriptions = choose(prepared, task, judge)
    else:
        chosen, descriptions = candidate_for(prepared, task, task.target.engine), {}
        profiles = seed_profiles(chosen, task.batch_sizes)
    manifest = put(chosen, prepared, task, profiles, task.store, task.name)
    return Compiled(
        manifest,
        chosen.shared,
        repaired=tuple(prepared.repaired),
        located=tuple(prepared.located),
        optimised=chosen.artifact.said,
        engines=descriptions,
        smaller=prepared.reduced and len(task.batch_sizes) > 1,
    )


def check_target_names(target: Target, judge: Judge | None = None) -> None:
    """Raise `CompileError` for an unknown engine, device or precision, or what they can't be together."""
    if target.engine not in (*MAKERS, AUTO):
        raise CompileError(f"engine {target.engine!r} is none of: {one_of(target.engine, (*MAKERS, AUTO))}")
    if target.device not in (CPU, CUDA):
        raise CompileError(f"device {target.device!r} is none of: {one_of(target.device, (CPU, CUDA))}")
    check_precision(target)
    if target.engine == AUTO and target.device != CPU and judge is None:
        raise CompileError(
            f"which engine is faster on {target.device} only a measurement there can tell: compile the model "
            "for each engine under another name, and have `mainspring profile` measure both on the device"
        )


def check_precision(target: Target) -> None:
    """Raise `CompileError` unless kernels of the precision can be generated for the target."""
    precision = target.precision
    if precision not in PRECISIONS:
        raise CompileError(f"precision {precision!r} is none of: {one_of(precision, PRECISIONS)}")
    if precision != FP32 and (target.engine, target.device) != (TVM, CUDA):
        raise CompileError(
            f"precision {precision} is for the engine {TVM} on the device {CUDA}, not for {target.engine} on "
            f"{target.device}: `--engine {TVM} --device {CUDA} --precision {precision}`"
        )
    number = arch_number(target.arch)
    if precision != FP32 and 0 < number < _OLDEST_TENSOR_CORES:
        raise CompileError(
            f"precision {precision} needs the tensor cores of sm_{_OLDEST_TENSOR_CORES} or newer, and "
            f"{target.arch} is older; compile for it without --precision"
        )
