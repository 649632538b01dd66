"""The shapes of a model's outputs: which axes vary, and how the others follow from its symbols."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.normalise import numpy_dtype
from mainspring.compiler.sizes.forms import Range, at_smaller, fit
from mainspring.compiler.sizes.symbols import Found, Sizes
from mainspring.compiler.sizes.trials import Trials
from mainspring.compiler.sizes.varying import Varying, capped, room
from mainspring.messages.model import MOST_VARYING, OpenDim, TensorSpec, item_bytes

_SHARES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Parts and multiples of the base below which a symbol's sizes are left out, tried one after the other."""

Shapes = Sequence[tuple[int, ...]]


class OutputShapes:
    """The known facts about the shapes of a model's outputs, from its graph and from runs."""

    def __init__(
        self, trials: Trials, found: Found, model: onnx.ModelProto, *, whole: bool, text_bytes: int
    ) -> None:
        """``model`` is the normalised one; outputs may vary if it is served ``whole``."""
        self._text_bytes = text_bytes
        self._trials = trials
        self._found = found
        varying = Varying(model) if whole else None
        self._varying = varying or None

    def bounds(self, sizes: Sizes, outputs: Sequence[TensorSpec]) -> list[dict[int, int | None]]:
        """Return for each output the bounds of the axes that vary; None where nothing says one."""
        if self._varying is None:
            return [dict.fromkeys(spec.varies) for spec in outputs]
        most = self._varying.most(self._found.fixed_at(sizes))
        return [
            {axis: bound.get(axis) for axis in spec.varies} for spec, bound in zip(outputs, most, strict=True)
        ]

    def whole(
        self, values: Sequence[onnx.ValueInfoProto], runs: Sequence[Shapes], sizes: Sizes
    ) -> tuple[TensorSpec, ...]:
        """Return the outputs, ``values``, of a model that was run on several values at these sizes.

        What varies has the largest shape that it gets memory for. Raises `CompileError` for an output with
        different numbers of axes.
        """
        known: list[dict[int, int | None]] = [{} for _ in values]
        if self._varying is not None:
            known = self._varying.most(self._found.fixed_at(sizes))
        specs = []
        for index, value in enumerate(values):
            shapes = [run[index] for run in runs]
            if len({*map(len, shapes)}) > 1:
                raise CompileError(
                    f"output {value.name!r} has {len(shapes[0])} axes for some values and others for others; "
                    "every output needs one number of axes"
                )
            measured = [max(each) for each in zip(*shapes, strict=True)]
            varies = {axis for axis, each in enumerate(zip(*shapes, strict=True)) if len({*each}) > 1}
            axes = tuple(sorted(varies | known[index].keys()))
            if len(axes) > MOST_VARYING:
                raise CompileError(
                    f"{len(axes)} axes of output {value.name!r} vary with values; at most {MOST_VARYING} may"
                )
            spec = TensorSpec(value.name, numpy_dtype(value, self._text_bytes), tuple(measured), varies=axes)
            specs.append(_roomy(spec, {axis: known[index].get(axis) for axis in axes}))
        return tuple(specs)

    def opened(self, specs: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], list[Range]]:
        """Return the outputs with the dimensions that follow from the symbols, shapes at their limits.

        Very small sizes may follow another form, for padding is more than the rest: unless dimensions are the
        same at all of these, the ranges of sizes that are returned leave them out. Raises `CompileError` for
        a dimension of no known form.
        """
        plain: set[tuple[int, int]] = set()
        while True:
            forms, ranges = self._fitted(specs, plain)
            odd = {(k, form) for k, form in enumerate(forms) if isinstance(form, int)}
            varies = {(k, axis) for k, axis in odd if axis in specs[k].varies}
            if not varies:
                break
            # A bound that follows no form is that of the limits, at all sizes.
            plain |= varies
        limits = tuple(each.limit for each in self._found.ranges)
        at_limits = self._trials.at(self._found.fixed_at(limits))
        assert at_limits is not None, "the limits were found by running there"
        bounds = self.bounds(limits, specs)
        found = []
        for k, (spec, shape, form, bound) in enumerate(
            zip(specs, at_limits.shapes, forms, bounds, strict=True)
        ):
            if isinstance(form, int):
                names = ", ".join(symbol.name for symbol in self._found.symbols)
                raise CompileError(
                    f"dimension {form} of output {spec.name!r}, behind the rows, follows from {names} in no "
                    "form that is known beforehand; fix the inputs' dimensions with `--shape`"
                )
            follows = None not in bound.values() and not any((k, axis) in plain for axis in bound)
            most = _with_room(spec, shape, bound, follows=follows)
            kept = tuple(dim for dim in form if dim.of(limits) == most[dim.axis])
            found.append(TensorSpec(spec.name, spec.dtype, most, kept, spec.varies))
        return tuple(found), ranges

    def _fitted(
        self, specs: Sequence[TensorSpec], plain: set[tuple[int, int]]
    ) -> tuple[list[tuple[OpenDim, ...] | int], list[Range]]:
        """Return each output's open dimensions; axes in ``plain`` are left out."""

        def tried(sizes: Sizes) -> Shapes | None:
            run = self._trials.at(self._found.fixed_at(sizes))
            if run is None or not any(spec.varies for spec in specs):
                return None if run is None else run.shapes
            shapes = [list(shape) for shape in run.shapes]
            for index, bounds in enumerate(self.bounds(sizes, specs)):
                for axis, bound in bounds.items():
                    shapes[index][axis] = 1 if (index, axis) in plain else bound or 1
            return [tuple(shape) for shape in shapes]

        for share in _SHARES:
            smaller = [each.from_share(share) for each in self._found.ranges]
            if any(each.base > each.limit for each in smaller):
                break
            if tried(tuple(each.base for each in smaller)) is None:
                continue
            ranges = smaller
            forms = fit(tried, ranges)
            if not any(isinstance(form, int) for form in forms):
                break
        fitted = [form for form in forms if not isinstance(form, int)]
        if len(fitted) == len(forms) and not any(spec.varies for spec in specs):
            everywhere = at_smaller(fitted, tried, ranges, self._found.ranges)
            if everywhere is not None:
                return list(everywhere), list(self._found.ranges)
        return forms, ranges


def _with_room(
    spec: TensorSpec, shape: tuple[int, ...], bounds: dict[int, int | None], *, follows: bool
) -> tuple[int, ...]:
    """Return an output's shape at the limits, ``shape`` in a run there, with room along the axes that vary.

    ``follows``: whether that is as large as at other sizes, or follows from these.
    """
    at_limits = list(room(shape, bounds, item_bytes(spec.dtype)))
    for axis in spec.varies:
        if bounds[axis] is None:
            # Samples at smaller sizes may have been larger.
            at_limits[axis] = max(at_limits[axis], spec.shape[axis])
    if follows:
        return tuple(at_limits)
    return capped(tuple(at_limits), shape, spec.varies, item_bytes(spec.dtype))


def _roomy(spec: TensorSpec, bounds: dict[int, int | None]) -> TensorSpec:
    """Return an output of fixed shapes with the largest one that it gets memory for."""
    if not spec.varies:
        return spec
    shape = capped(
        room(spec.shape, bounds, item_bytes(spec.dtype)), spec.shape, spec.varies, item_bytes(spec.dtype)
    )
    return TensorSpec(spec.name, spec.dtype, shape, varies=spec.varies)
