"""The original model in stock ONNX Runtime, at any number of rows: the reference for comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from mainspring.compiler.artifact.errors import (
    AS_IT_IS,
    CannotRun,
    CompileError,
    NoRows,
    NoSample,
    Overlong,
    TextsTooLong,
    let_go,
    malformed,
)
from mainspring.compiler.artifact.manifest import PROOF_VERSION, Independence
from mainspring.compiler.choosing.opinion import opinion
from mainspring.compiler.reading.contents import Content, serialise
from mainspring.compiler.reading.normalise import check_limits, normalise, numpy_dtype, open_axes, opset_of
from mainspring.compiler.reading.operator_libraries import in_use
from mainspring.compiler.reading.replaced_operators import (
    draws_numbers,
    with_locales,
    with_seeds,
    without_maps,
    without_sequences,
)
from mainspring.compiler.reading.stock import Session, StockSession, open_stock, without_decided_branches
from mainspring.compiler.reading.versions import check_conversion, make_readable
from mainspring.compiler.rows.open_batch import baked_batch, name_squeezed, open_batch, repair_reshapes
from mainspring.compiler.rows.proving import at_sizes, judge
from mainspring.compiler.sizes.forms import Range
from mainspring.compiler.sizes.outputs import OutputShapes
from mainspring.compiler.sizes.sample_forms import HINT, NO_SAMPLES, Samples, forms
from mainspring.compiler.sizes.samples import (
    WORDS,
    Choices,
    compared_numbers,
    draw,
    index_tables,
    known_texts,
    largest_scale,
    smallest_limits,
    value_limits,
)
from mainspring.compiler.sizes.symbols import Found, Sizes, find_symbols
from mainspring.compiler.sizes.trials import NoRoom, Trials
from mainspring.compiler.sizes.varying import values_decide
from mainspring.compiler.sizes.work import Counter, guard_divisions
from mainspring.messages.model import TEXT_BYTES, TensorSpec, array_dtype, too_long

_Values = Sequence[onnx.ValueInfoProto]
Arrays = list[npt.NDArray[np.generic]]

_PROBES = (2, 3)
"""Numbers of rows that show which axis of an output is the batch."""
_SCALED_ROWS = 3
"""Number of rows with which each scale of floats is tried."""
_SHAPES_ASKED = 3
"""Number of shapes at which ONNX Runtime's optimised session is compared with the unoptimised one."""


class Reference:
    """A stock session on the original model. If its batch is fixed, rows are run in groups of that size."""

    def __init__(
        self,
        session: Session,
        fixed: int | None,
        *,
        whole: bool = False,
        opened: Callable[[], StockSession] | None = None,
    ) -> None:
        """Wrap a session; with ``whole``, the original has no axis for rows: a row is all of its tensors.

        ``opened`` opens the session of an original that draws random numbers once more.
        """
        self._session = session
        self.fixed = fixed
        self._whole = whole
        self._opened = opened

    def from_the_beginning(self) -> Reference:
        """Return the reference as it was before its first run, if it draws random numbers."""
        if self._opened is None:
            return self
        return Reference(self._opened(), self.fixed, whole=self._whole)

    def run(self, arrays: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.generic]]:
        """Return the outputs for these rows of every input; raise `CompileError` if the model can't run."""
        if self.fixed is None:
            return self._session.run(arrays)
        rows = len(arrays[0])
        if self._whole:
            alone = [self._session.run([np.asarray(array[row]) for array in arrays]) for row in range(rows)]
            groups = [[output[None] for output in outputs] for outputs in alone]
        else:
            groups = [
                self._session.run([_group(array, begin, self.fixed) for array in arrays])
                for begin in range(0, rows, self.fixed)
            ]
        try:
            return [
                np.concatenate([np.atleast_1d(part) for part in parts])[:rows]
                for parts in zip(*groups, strict=True)
            ]
        except ValueError as error:
            raise CompileError(
                f"the shape of an output depends on the values of the inputs ({error}); "
                "every row of an output needs the same shape"
            ) from error


class Prepared:
    """A model ready to be optimised, with the original to compare it with.

    The model is kept as ``content``, the bytes that ONNX Runtime reads: its weights are in memory once.
    ``draws`` says whether it draws random numbers.
    """

    verified = True
    """False if the model runs on no sample (`unverified`)."""
    opinion = ""
    """Sentence on ONNX Runtime's optimisations, if they change the model (`opinion`)."""

    def __init__(
        self,
        original: onnx.ModelProto,
        rows: int,
        *,
        whole: bool = False,
        most: Mapping[str, int] | None = None,
        text_bytes: int = TEXT_BYTES,
        or_fewer: bool = False,
        samples: Samples = NO_SAMPLES,
    ) -> None:
        """Normalise ``original`` and open its batch; sample ``rows`` rows. Raises `CompileError`.

        If ``or_fewer``, the largest batch may have less, as many as memory is enough for (`size_trials`).
        If ``whole``, its shapes stay unchanged, behind a leading axis of 1. Unless ``most`` is None, other
        dimensions may be open, up to the limits in it, by name, or up to limits that are found. Texts have
        at most ``text_bytes``; ``samples`` are rows that the model takes.
        """
        self.whole = whole
        self.most_rows = rows
        """Rows of the largest batch."""
        self.reduced = False
        """True if they are fewer than were asked for."""
        self._or_fewer = or_fewer
        self._text_bytes = text_bytes
        self._draw: Callable[..., Arrays]
        with malformed():
            original, self.located = with_locales(without_sequences(without_maps(original)))
            readable, converted = make_readable(original)
            self.draws = draws_numbers(readable)
            readable = without_decided_branches(with_seeds(readable) if self.draws else readable)
            if most and not whole:
                check_limits(readable, most)
            model = normalise(readable, whole=whole, symbols=most is not None)
            guard_divisions(model)
            fixed = baked_batch(model)
            self.fixed_rows = 0 if whole else fixed or 0
            """Rows of the batch that the file fixes; 0 if it is open, or there is none."""
        model, session = self._open_original(serialise(readable), fixed, model, rows, most or {}, samples)
        if converted:
            self._check_conversion(original, session, fixed or 1)
        self.repaired, self._suspects = list[str](), list[str]()
        if self.reference.fixed is None and not self._runs_batches(_PROBES[0]):
            self.reference.fixed = 1
        if not whole:
            with malformed():
                self._open(model)
        self.content = serialise(model)
        self._describe(model, session)

    def _open_original(
        self,
        content: Content,
        fixed: int | None,
        model: onnx.ModelProto,
        rows: int,
        most: Mapping[str, int],
        samples: Samples,
    ) -> tuple[onnx.ModelProto, StockSession]:
        """Open a session on the original, whose batch may be ``fixed``, as the reference, and sample rows.

        Returns what `_sample` does, and the session.
        """
        session = open_stock(content)
        # As it is, which takes less time to open.
        opened = functools.partial(StockSession, content, optimised=False) if self.draws else None
        self.reference = Reference(session, fixed, whole=self.whole, opened=opened)
        try:
            return self._sample(model, rows, most, samples), self._with_opinion(content, session)
        except CannotRun as error:
            let_go(error)
            session = self._unoptimised(content, error)
            return self._sample(model, rows, most, samples), session

    def _check_conversion(self, original: onnx.ModelProto, session: StockSession, rows: int) -> None:
        if self.draws:
            raise CompileError(
                f"the model draws random numbers, and opset {opset_of(original)} has to be converted, which "
                "can't be checked then; the model's author can export it with a newer opset"
            )
        some = self._as_original(self.rows, rows)
        check_conversion(original, [spec.name for spec in self.inputs], some, session.run(some))

    def _as_original(self, arrays: Arrays, rows: int) -> Arrays:
        """Return the first of these rows as the original takes them."""
        return [np.asarray(array[0]) if self.whole else _group(array, 0, rows) for array in arrays]

    def _unoptimised(self, content: Content, error: CompileError) -> StockSession:
        """Return an unoptimised session as the reference, for a model that fails with ``error``; or raise it.

        The optimisations of ONNX Runtime may be what breaks the model, which the next samples show.
        """
        with suppress(CompileError):
            session = StockSession(content, optimised=False)
            self.reference = Reference(session, self.reference.fixed, whole=self.whole)
            self.opinion = (
                f"ONNX Runtime's optimisations break the model: {error}; it is compared unoptimised"
            )
            return session
        raise error

    def _with_opinion(self, content: Content, session: StockSession) -> StockSession:
        """Return the session to compare with: one that ONNX Runtime's optimisations don't change."""
        if self.draws:
            return session
        rows = self.reference.fixed or (_PROBES[1] if self._runs_batches(_PROBES[1]) else 1)
        drawn = (self.rows_at(sizes, max(rows, _PROBES[0])) for sizes in self.shapes[:_SHAPES_ASKED])
        batches = (self._as_original(arrays, rows) for arrays in drawn)
        names = [spec.name for spec in self.inputs]
        session, self.opinion = opinion(content, session, names, batches)
        self.reference = Reference(session, self.reference.fixed, whole=self.whole)
        return session

    def _describe(self, model: onnx.ModelProto, session: StockSession) -> None:
        """Find the outputs' shapes, and whether rows are independent; ``session`` has the original."""
        outputs, whole = model.graph.output, self.whole
        self._shapes_out = OutputShapes(
            self._trials, self._found, model, whole=whole, text_bytes=self._text_bytes
        )
        row_specs = self._whole_outputs(outputs) if whole else self._find_outputs(session, outputs)
        self.outputs = self._opened(row_specs) if self.symbols else row_specs
        fixed_at = [self._found.fixed_at(sizes) for sizes in self.shapes] if self.symbols else []
        self.independence = Independence(PROOF_VERSION) if whole else judge(model, self.content, fixed_at)

    def _sample(
        self, model: onnx.ModelProto, rows: int, most: Mapping[str, int], given: Samples
    ) -> onnx.ModelProto:
        """Find the symbols and draw ``rows`` rows in the first form of samples with which the model runs.

        Returns the model without dimensions of but one size.
        """
        specs = tuple(
            TensorSpec(each.name, numpy_dtype(each, self._text_bytes), _row_shape(each))
            for each in model.graph.input
        )
        # In a batch, rows that decide otherwise don't choose what runs.
        self.choices = Choices(specs, compared_numbers(model.graph) if self.whole else {})
        texts = [text for text in known_texts(model.graph) if len(text) <= self._text_bytes]
        self._texts = [*texts, *(text for text in WORDS if len(text) <= self._text_bytes)]
        first: CompileError | None = None
        for form in forms(specs, texts, given):
            self._form, self._draw, self._ran, self._shortens = form, form.draw, False, form.shortens
            try:
                found = self._sample_as(model, specs, rows, most)
                # Floats may become indices by a Cast.
                casts = any(node.op_type == "Cast" for node in model.graph.node)
                if casts or any(array_dtype(spec.dtype).kind in "Siu" for spec in specs):
                    self._check_rows()
                self._shortens = False
                return found
            except Overlong as error:
                first = TextsTooLong(str(error))
            except CompileError as error:
                if given or isinstance(error, NoRoom) or (self._ran and not isinstance(error, CannotRun)):
                    raise
                first = first if first and not isinstance(error, TextsTooLong) else error
        if isinstance(first, TextsTooLong):
            raise first
        kind = NoRows if isinstance(first, NoRows) and not self.whole else NoSample
        raise kind(f"{first}; {HINT}") from first

    def _check_rows(self) -> None:
        """Raise `CannotRun` unless the model runs with each of the sampled rows, and `Overlong` as `_run`."""
        if self._shortens and any(spec.dtype.startswith("S") for spec in self.inputs):
            at_limits = self._inputs_at(tuple(each.limit for each in self.ranges))
            longest = [max(self._form.texts or self._texts, key=len)]
            with suppress(CompileError):
                self._run(draw(at_limits, smallest_limits(at_limits), 1, longest))
        if self._runs_batches(self._most_rows):
            return
        for row in range(self._most_rows):
            self._run([array[row : row + 1] for array in self.rows])

    def _run(self, arrays: Arrays) -> Arrays:
        found = self.choices.first(self.reference.run, arrays)
        self._ran = True
        longest = max((each.itemsize for each in found if each.dtype.kind == "S"), default=0)
        if longest > self._text_bytes:
            kind = Overlong if self._shortens else TextsTooLong
            raise kind(f"a text that the model makes of samples {too_long(longest, self._text_bytes)}")
        return found

    def _sample_as(
        self, model: onnx.ModelProto, specs: tuple[TensorSpec, ...], rows: int, most: Mapping[str, int]
    ) -> onnx.ModelProto:
        """Do what `_sample` says in one form."""
        axes = open_axes(model)
        fewer = self._or_fewer and not most
        self._trials = Trials(specs, axes, self._run_small, rows, Counter(model), or_fewer=fewer)
        self._found = Found((), (), specs, {})
        if axes or most:
            self._found = find_symbols(self._trials, axes, most)
        self.symbols, self.inputs = self._found.symbols, self._found.inputs
        at_limits = self._found.fixed_at(tuple(symbol.limit for symbol in self.symbols))
        if self._or_fewer:
            self.most_rows = self._trials.reduce_rows(at_limits, found=bool(axes) and not most)
            self.reduced, rows = self.most_rows < rows, self.most_rows
        self._trials.check_room(at_limits)
        self.ranges = self._found.ranges
        self.shapes = _shapes_to_try(self._found.ranges)
        if single := {name: -size for name, size in self._found.dims.items() if size < 0}:
            model = at_sizes(model, single)
        self._most_rows = max(rows, *_PROBES)
        base, tables = self._inputs_at(self.shapes[0]), index_tables(model.graph)
        self._values = self._limits(base, self._most_rows, tables)
        if self.whole and values_decide(model):
            self._draw = functools.partial(self._draw, most_scale=largest_scale(self._run_scaled))
        self.rows = self.rows_at(self.shapes[0], self._most_rows)
        return model

    def _limits(
        self, inputs: tuple[TensorSpec, ...], rows: int, tables: dict[str, int] | None = None
    ) -> list[int]:
        """Return the numbers that integers of these inputs stay below."""
        whole, texts = self.whole, self._texts
        return value_limits(inputs, rows, self._run, tables, whole=whole, texts=texts, drawn=self._form.draw)

    @property
    def beginning(self) -> Arrays:
        """A row with which the model runs, if it does not on zeros; those are not tried with libraries."""
        if in_use().libraries:
            return [array[:1] for array in self.rows]
        with suppress(CompileError):
            self.choices.first(self.reference.run, [np.zeros_like(array[:1]) for array in self.rows])
            return []
        return [array[:1] for array in self.rows]

    def rows_at(self, sizes: Sizes, rows: int) -> Arrays:
        """Return sampled rows for one size of each symbol.

        Integers that are too large there, such as the length of what is before padding, are drawn smaller.
        """
        inputs = self._inputs_at(sizes)
        drawn = self._draw(inputs, self._values, rows, self._texts)
        numbers = any(array_dtype(spec.dtype).kind in "iu" for spec in inputs)
        if numbers and sizes != self.shapes[0] and not self._takes(drawn):
            own = self._limits(inputs, rows)
            drawn = self._draw(inputs, [*map(min, own, self._values)], rows, self._texts)
        return self.choices.spread(self.reference.run, drawn)

    def _takes(self, drawn: Arrays) -> bool:
        """Return whether the model runs with the first of these rows, which has the largest integers."""
        try:
            self._run([array[:1] for array in drawn])
        except CompileError:
            return False
        return True

    def _inputs_at(self, sizes: Sizes) -> tuple[TensorSpec, ...]:
        return tuple(spec.at(sizes) for spec in self.inputs)

    def _run_small(self, inputs: Sequence[TensorSpec]) -> Arrays:
        """Run a row of small values."""
        return self._run(self._form.draw(inputs, smallest_limits(inputs), 1, self._texts))

    def _run_scaled(self, scale: float) -> None:
        """Run some rows of the limits' sizes whose floats have scales up to this one."""
        inputs = self._inputs_at(tuple(each.limit for each in self.ranges))
        drawn = self._form.draw(inputs, self._values, _SCALED_ROWS, self._texts, scale)
        for row in range(_SCALED_ROWS):
            self.choices.first(self.reference.run, [array[row : row + 1] for array in drawn])

    def _opened(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the outputs with the dimensions that follow from the symbols; least sizes may be raised."""
        found, ranges = self._shapes_out.opened(specs)
        self.ranges = tuple(ranges)
        self.symbols = tuple(
            msgspec.structs.replace(
                symbol,
                ceilings=tuple(size for size in symbol.ceilings if size >= each.least),
                least=each.least,
            )
            for symbol, each in zip(self.symbols, ranges, strict=True)
        )
        first, self.shapes = self.shapes[0], _shapes_to_try(ranges)
        if self.shapes[0] != first:
            self.rows = self.rows_at(self.shapes[0], self._most_rows)
        return found

    def refusal(self, reason: str) -> CompileError:
        """Return the error with ``reason`` and the nodes that may be the cause."""
        if not self._suspects:
            return CompileError(reason)
        nodes = ", ".join(repr(name) for name in self._suspects[:5])
        return CompileError(
            f"{reason}. The exporter's batch is in the shape of Reshape {nodes}, where nothing proves what "
            "it means; the model's author can export it with a dynamic batch axis"
        )

    def _runs_batches(self, rows: int) -> bool:
        try:
            self.reference.run([array[:rows] for array in self.rows])
        except CompileError:
            return False
        return True

    def _open(self, model: onnx.ModelProto) -> None:
        open_batch(model)
        name_squeezed(model)
        if self.reference.fixed is not None:
            self.repaired, self._suspects = repair_reshapes(model, self.reference.fixed)

    def _whole_outputs(self, outputs: _Values) -> tuple[TensorSpec, ...]:
        """Return the outputs' specifications, found from runs on different values."""
        rows = [[array[row : row + 1] for array in self.rows] for row in range(self._most_rows)]
        few = max(2, 1 + len(self.choices.ways))
        runs = [self._run_shapes(row) for row in rows[:few]]
        if not in_use().libraries:
            # Random numbers are almost never 0, and many models branch on 0.
            with suppress(CompileError):
                runs.append(self._run_shapes([np.zeros_like(array[:1]) for array in self.rows]))
        found = self._shapes_out.whole(outputs, runs, self.shapes[0])
        if not any(spec.varies for spec in found):
            return found
        return self._shapes_out.whole(outputs, [*runs, *map(self._run_shapes, rows[few:])], self.shapes[0])

    def _run_shapes(self, row: Arrays) -> list[tuple[int, ...]]:
        return [array.shape[1:] for array in self.reference.run(row)]

    def _find_outputs(self, stock: StockSession, outputs: _Values) -> tuple[TensorSpec, ...]:
        """Return the outputs' specifications, found from runs with two numbers of rows."""
        few, many = _PROBES
        # An unoptimised model's nodes still have the author's names.
        fixed = self.reference.fixed is not None
        session = StockSession(self.content, optimised=False) if fixed else stock
        try:
            found = [session.run([array[:rows] for array in self.rows]) for rows in _PROBES]
        except CompileError as error:
            raise NoRows(str(self.refusal(f"the model can't run {few} rows at once: {error}"))) from error
        specs = []
        for value, first, second in zip(outputs, *found, strict=True):
            if (
                first.shape[:1] != (few,)
                or second.shape[:1] != (many,)
                or first.shape[1:] != second.shape[1:]
            ):
                refusal = self.refusal(
                    f"output {value.name!r} is {first.shape} for {few} rows, {second.shape} for {many}, so "
                    "its first axis isn't the batch; every output needs one row for each row of the inputs; "
                    f"or {AS_IT_IS}"
                )
                raise NoRows(str(refusal))
            specs.append(TensorSpec(value.name, numpy_dtype(value, self._text_bytes), first.shape[1:]))
        return tuple(specs)


def _row_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])


def _shapes_to_try(ranges: Sequence[Range]) -> tuple[Sizes, ...]:
    """Return sizes at which samples are compared: small ones, the least, odd ones, the limits."""
    at = [
        [each.base for each in ranges],
        [each.least for each in ranges],
        [each.at(3 + 2 * index) for index, each in enumerate(ranges)],
        [each.limit for each in ranges],
    ]
    return tuple(dict.fromkeys(map(tuple, at)))


def _group(array: npt.NDArray[np.generic], begin: int, size: int) -> npt.NDArray[np.generic]:
    """Return ``size`` rows from ``begin``; the last row is repeated if there are fewer."""
    return array[np.minimum(np.arange(begin, begin + size), len(array) - 1)]
