"""The specification of a model: all that the controller, the gateways and the workers need to know of it."""

from __future__ import annotations

import itertools
import math
import re
import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mainspring.messages.sequencing import Sequencing

PAGE_BYTES = 16 * 1024 * 1024
"""Size of a page of device memory that holds weights (Clockwork, section 5.2)."""

DTYPES = (
    *("bool", "float16", "float32", "float64", "bfloat16"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
"""Types of numbers that a tensor may hold, by numpy's names; ``bfloat16`` as ml_dtypes has it."""
_ITEM_BYTES = {name: 2 if name == "bfloat16" else np.dtype(name).itemsize for name in DTYPES}
_SLOT = re.compile(r"S([1-9][0-9]{0,8})")


def slot_bytes(dtype: str) -> int | None:
    """Return the size of each element if ``dtype`` is text or bytes of a fixed size, else None.

    Such a dtype is ``S`` and a number of bytes, numpy's own name. A shorter element is padded with zero
    bytes, and those that an element ends with are not part of it.
    """
    slot = _SLOT.fullmatch(dtype)
    return None if slot is None else int(slot[1])


TEXT_BYTES = 1024
"""Bytes of the slot that an element of a model's texts has, unless it is compiled for another."""
MOST_TEXT_BYTES = 1 << 20
"""The largest that it may be compiled for."""


def too_long(count: int, slot: int) -> str:
    """Say what is wrong with a text of ``count`` bytes in a slot of fewer, and what would be right."""
    return f"has {count:,} bytes; at most {slot:,} fit, which `mainspring compile --text-bytes` sets"


def is_dtype(dtype: str) -> bool:
    """Say whether a tensor may hold this: one of `DTYPES`, or slots of bytes such as ``S64``."""
    return dtype in _ITEM_BYTES or slot_bytes(dtype) is not None


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's type for a tensor's; raise TypeError for bfloat16 without the package ml_dtypes."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    # Clients have the package only if they want this type, and the check of a GPU that travels has no models
    # that need it.
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 is not one of numpy's own types: install the package ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


FOUND_BYTES = 64
"""Bytes that an output that varies begins with: its sizes along the axes that vary, 8 bytes each, low
first."""
MOST_VARYING = FOUND_BYTES // 8
"""Most axes of an output that vary."""

MOST_BUCKETS = 64
"""Most buckets of shapes that a model has, over all its symbols."""


class Term(msgspec.Struct, frozen=True):
    """A number that follows from the size of one symbol: ``(times * size + plus) // over``."""

    symbol: int
    """Index in `ModelSpec.symbols`."""
    times: int = 1
    plus: int = 0
    over: int = 1

    def of(self, sizes: tuple[int, ...]) -> int:
        """Return the number, for one size of each symbol."""
        return (self.times * sizes[self.symbol] + self.plus) // self.over

    def written(self, names: Sequence[str]) -> str:
        """Return it for a person, with the symbols' names."""
        text = names[self.symbol] if self.times == 1 else f"{self.times} * {names[self.symbol]}"
        if self.plus:
            text = f"({text} {'+' if self.plus > 0 else '-'} {abs(self.plus)})"
        return text if self.over == 1 else f"({text} // {self.over})"


class Product(msgspec.Struct, frozen=True):
    """``scale`` times the product of the terms; without terms just ``scale``."""

    terms: tuple[Term, ...]
    scale: int = 1

    def of(self, sizes: tuple[int, ...]) -> int:
        """Return the number, for one size of each symbol."""
        return self.scale * math.prod(term.of(sizes) for term in self.terms)


class OpenDim(msgspec.Struct, frozen=True):
    """A dimension that follows from the sizes of symbols: ``scale`` times the product of terms, and more."""

    axis: int
    """Index of the dimension in `TensorSpec.shape`, which has no batch axis."""
    terms: tuple[Term, ...]
    scale: int = 1
    others: tuple[Product, ...] = ()
    """Products that are added: ``past + seq``, ``height * width + 1``."""
    least: int = 0
    """Lower bound of the dimension: one window, where a sequence is shorter than that."""

    def of(self, sizes: tuple[int, ...]) -> int:
        """Return the dimension, for one size of each symbol."""
        size = self.scale * math.prod(term.of(sizes) for term in self.terms)
        if self.others:
            size += sum([each.of(sizes) for each in self.others])
        return size if size > self.least else self.least

    @property
    def symbol(self) -> int | None:
        """The symbol whose size it is; None if it follows from the sizes in another way."""
        plain = self.terms[:1] == self.terms and self.scale == 1 and not self.others and not self.least
        term = self.terms[0]
        return term.symbol if plain and (term.times, term.plus, term.over) == (1, 0, 1) else None

    @property
    def every_term(self) -> tuple[Term, ...]:
        """Its terms, and those of the others."""
        return (*self.terms, *[term for other in self.others for term in other.terms])

    def written(self, names: Sequence[str]) -> str:
        """Return it for a person, with the symbols' names: ``past + seq``."""
        text = ""
        for each in (Product(self.terms, self.scale), *self.others):
            factors = [term.written(names) for term in each.terms]
            if abs(each.scale) != 1 or not factors:
                factors.insert(0, str(abs(each.scale)))
            sign = "-" if each.scale < 0 else "+" if text else ""
            text += f"{' ' if text else ''}{sign}{' ' if text else ''}{' * '.join(factors)}"
        return f"max({self.least}, {text})" if self.least else text


def shape_at(shape: tuple[int, ...], opened: tuple[OpenDim, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with its open dimensions for one size of each symbol."""
    if not opened:
        return shape
    dims = list(shape)
    for dim in opened:
        dims[dim.axis] = dim.of(sizes)
    return tuple(dims)


class Symbol(msgspec.Struct, frozen=True):
    """An open dimension of a model besides its batch, whose size each request chooses."""

    name: str
    ceilings: tuple[int, ...]
    """Ascending: a size belongs to the smallest that holds it. The last is the limit."""
    least: int = 1
    """The smallest size that the model takes."""
    step: int = 1
    """It takes the smallest size and multiples of this more."""

    @property
    def limit(self) -> int:
        """The largest size that the model takes."""
        return self.ceilings[-1]

    def __str__(self) -> str:
        return f"{self.name} from {self.sizes}"

    @property
    def sizes(self) -> str:
        """Its sizes for a person."""
        return f"{self.least} to {self.limit}{f' in steps of {self.step}' if self.step > 1 else ''}"

    def takes(self, size: int) -> bool:
        """Say whether the model takes this size."""
        return self.least <= size <= self.limit and (size - self.least) % self.step == 0


def bucket_name(ceilings: tuple[int, ...]) -> str:
    """Return what a bucket is called in profiles and behind a model's name: ``128``, or ``640x480``."""
    return "x".join(map(str, ceilings))


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or output tensor of one row: its name, numpy dtype and shape without the batch axis."""

    name: str
    dtype: str
    """Type of the elements: one of `DTYPES`, or slots of bytes such as ``S64``."""
    shape: tuple[int, ...]
    """Shape of one row; an open dimension has the size at the symbols' limits."""
    open: tuple[OpenDim, ...] = ()
    """The dimensions that follow from symbols."""
    varies: tuple[int, ...] = ()
    """Axes of an output whose sizes follow from values, known only after a run: ``shape`` and ``open``
    have the largest. Its bytes begin with the sizes that were found (`FOUND_BYTES`)."""
    rows_axis: int = 0
    """Axis that holds the rows in clients' tensors: 1 for ``[T, rows, C]``, whose ``shape`` is ``[T, C]``.
    Executables have them in front, whatever it is; a worker moves them as it copies a request's tensors."""
    default: bytes | None = None
    """Content of an input that a request leaves out; None if it has to be given."""

    def at(self, sizes: tuple[int, ...]) -> TensorSpec:
        """Return the tensor of a fixed shape that it is for one size of each symbol."""
        if not self.open:
            return self
        shape = shape_at(self.shape, self.open, sizes)
        return TensorSpec(self.name, self.dtype, shape, varies=self.varies, rows_axis=self.rows_axis)

    def with_rows(self, rows: int) -> tuple[int, ...]:
        """Return the shape of ``rows`` rows, as clients see it."""
        if not self.rows_axis:
            return (rows, *self.shape)
        return (*self.shape[: self.rows_axis], rows, *self.shape[self.rows_axis :])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, the most if it varies."""
        return math.prod(self.shape) * item_bytes(self.dtype) + (FOUND_BYTES if self.varies else 0)

    def found(self, frame: bytes | bytearray | memoryview) -> tuple[tuple[int, ...], int]:
        """Return the shape that a row of an output that varies has, and its bytes with their beginning.

        Raises `ValueError` for sizes that no run could have found.
        """
        sizes = struct.unpack_from(f"<{len(self.varies)}q", frame)
        shape = list(self.shape)
        for axis, size in zip(self.varies, sizes, strict=True):
            shape[axis] = size
        if min(sizes) < 0 or math.prod(shape) > math.prod(self.shape):
            raise ValueError(f"output {self.name!r} is of shape {shape}, and at most of {list(self.shape)}")
        return tuple(shape), FOUND_BYTES + math.prod(shape) * item_bytes(self.dtype)

    @property
    def dims(self) -> list[str]:
        """The dimensions for a person; an open one as the largest that it can be: ``<=512``."""
        open_axes = {dim.axis for dim in self.open} | {*self.varies}
        return [f"<={size}" if axis in open_axes else str(size) for axis, size in enumerate(self.shape)]

    @property
    def dims_with_rows(self) -> list[str]:
        """The dimensions for a person, with the rows where clients have them."""
        dims = self.dims
        return [*dims[: self.rows_axis], "rows", *dims[self.rows_axis :]]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(self.dims_with_rows)}]"


class Profile(msgspec.Struct, frozen=True):
    """Seed durations of a model on one kind of device (Clockwork, section 5.1 and appendix A)."""

    infer_ns: dict[int, int]
    """Execution time for each batch size."""
    load_ns: int
    """Time to copy the weights into the device's pages."""
    shaped: dict[str, dict[int, int]] = {}
    """Execution time for each batch size by bucket, such as ``128`` or ``640x480``, of a model with symbols;
    ``infer_ns`` is at the limits."""
    spread: float = 0.0
    """Ratio of the 99th percentile to the median of runs of one shape with other values, of a model that is
    served whole; 0 where that was not measured."""
    packs: dict[str, int] = {}
    """Kinds of nodes that lay out their weights again in every run, and how many there are of each."""
    beside_stock: dict[int, float] = {}
    """Median execution as a multiple of a stock ONNX Runtime session's of the same file, by batch size, of a
    model with such nodes."""

    @property
    def packing(self) -> str:
        """Return which nodes pack their weights in every run, and at what cost, for a person; maybe empty."""
        if not self.packs:
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.packs.items())
        said = f"packs the weights of {kinds} in every run, stock ONNX Runtime once"
        if not self.beside_stock:
            return f"{said}; not compared with a stock session"
        ratios = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in sorted(self.beside_stock.items()))
        return f"{said}; at batch sizes {ratios} times as long as a stock session"


class Artifact(msgspec.Struct, frozen=True):
    """The identity of what a worker prepares: models of one name are the same to it if these fields are."""

    weights_hash: str
    executable: str
    batch_sizes: tuple[int, ...]
    pad: dict[str, float] = {}
    rows_axes: tuple[int, ...] = ()
    """Axis of the rows in clients' tensors, of inputs, then of outputs; empty if always in front."""


class Build(msgspec.Struct, frozen=True):
    """The fields that differ between a model's artifacts for unlike hosts; each is as in `ModelSpec`."""

    target: str
    stored_as: str
    weights_hash: str
    executable: str
    weights_bytes: int
    extents: tuple[int, ...]
    profiles: dict[str, Profile]
    workspace_bytes: int = 0


_LARGER = (
    "; compile it with `--max {name}={size}`, or in a repository the parameter max.{name} of config.pbtxt"
)


class ModelSpec(msgspec.Struct, frozen=True):
    """One model instance, as everyone but its engine sees it."""

    name: str
    weights_hash: str
    """SHA-256 of the weights file; with ``executable`` it identifies the artifact in a store."""
    executable: str
    """SHA-256 of the graph without weights. Models that share it share compilation and estimates."""
    batch_sizes: tuple[int, ...]
    """Ascending sizes that the executable was compiled and profiled for."""
    weights_bytes: int
    extents: tuple[int, ...]
    """Runs of adjacent pages that the weights need, in the order of the weights file."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: dict[str, Profile]
    """Seed durations by device kind."""
    workspace_bytes: int = 0
    served_as: str = ""
    """Clients' name of it if it is a version of a repository's model; empty if they call it by ``name``."""
    version: int = 1
    """Number of the model's version."""
    unshared: str = ""
    """Reason why an execution is for one row of one request only, with the node that causes it; empty if
    requests may share executions, because no row's outputs depend on other rows."""
    whole: bool = False
    """True if the model has no axis for rows: a request is one run, with tensors of just the shapes of
    ``inputs``. To all but the gateways and their clients such a request is one row."""
    symbols: tuple[Symbol, ...] = ()
    """Its open dimensions besides the batch."""
    pad: dict[str, float] = {}
    """Value with which each input with an open dimension may be padded to the sizes of other requests of its
    bucket, of a model whose results don't depend on what follows behind a request's own sizes. Empty: an
    execution has requests of equal sizes only."""
    at_ceilings: bool = False
    """True if the executable has a plan for each bucket, of its ceilings' shapes: every request is padded to
    these, and an execution takes as long as they do whatever sizes its requests have."""
    sequencing: Sequencing | None = None
    """States and controls of a model whose requests come in sequences; None for other models. ``inputs`` and
    ``outputs`` hold what gateways keep, too; a gateway's list of models does not."""
    target: str = ""
    """Hosts that the artifact is for, such as ``tvm-sm_90`` (`messages.targets`); empty if unknown."""
    stored_as: str = ""
    """The artifact's name in a store; empty if that is ``name``."""
    others: tuple[Build, ...] = ()
    """Its artifacts for other targets; a PREPARE names the one that its worker runs."""
    verified: bool = True
    """False if it is served on the operator's word alone: it was never compared with ONNX Runtime."""

    @property
    def stored_name(self) -> str:
        """Return the artifact's name in a store."""
        return self.stored_as or self.name

    @property
    def buckets(self) -> tuple[tuple[int, ...], ...]:
        """Return the ceilings of each bucket of a model with symbols, in the order of their space."""
        every = itertools.product(*[symbol.ceilings for symbol in self.symbols])
        return tuple(sorted(every, key=lambda ceilings: (math.prod(ceilings), ceilings)))

    @property
    def executables(self) -> tuple[str, ...]:
        """Return all that has estimates of its own: the executable, and its buckets if there are symbols."""
        own = (self.executable, *[build.executable for build in self.others])
        if not self.symbols:
            return own
        buckets = [self.at(ceilings) for ceilings in self.buckets]
        return (*own, *[each for bucket in buckets for each in bucket.executables])

    def bucket_of(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ceilings of the bucket that holds a size of each symbol.

        Raises `ValueError`, which names what is right, for other sizes than the model takes.
        """
        if len(sizes) != len(self.symbols):
            raise ValueError(f"{len(sizes)} sizes were given for the symbols {self._taken}")
        found = []
        for symbol, size in zip(self.symbols, sizes, strict=True):
            if not symbol.takes(size):
                more = _LARGER.format(name=symbol.name, size=size) if size > symbol.limit else ""
                raise ValueError(f"{symbol.name} is {size}; the model takes {self._taken}{more}")
            found.append(symbol.ceilings[bisect_left(symbol.ceilings, size)])
        return tuple(found)

    def at(self, ceilings: tuple[int, ...]) -> ModelSpec:
        """Return a bucket as a model of fixed shapes, those of its ceilings, with its own durations."""
        name = bucket_name(ceilings)
        others = [
            msgspec.structs.replace(
                build,
                executable=f"{build.executable}@{name}",
                profiles=_at_bucket(build.profiles, name),
            )
            for build in self.others
        ]
        return msgspec.structs.replace(
            self,
            name=f"{self.name}@{name}",
            executable=f"{self.executable}@{name}",
            inputs=tuple([tensor.at(ceilings) for tensor in self.inputs]),
            outputs=tuple([tensor.at(ceilings) for tensor in self.outputs]),
            profiles=_at_bucket(self.profiles, name),
            symbols=(),
            others=tuple(others),
        )

    @property
    def _taken(self) -> str:
        return ", ".join(map(str, self.symbols)) or "none"

    @property
    def public_name(self) -> str:
        """Return the name by which clients call it."""
        return self.served_as or self.name

    @property
    def artifact(self) -> Artifact:
        """Return the identity of what a worker would prepare of it."""
        axes = () if self.rows_in_front else tuple([each.rows_axis for each in (*self.inputs, *self.outputs)])
        return Artifact(self.weights_hash, self.executable, self.batch_sizes, self.pad, axes)

    @property
    def pages(self) -> int:
        """Pages that the weights occupy."""
        return sum(self.extents)

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch, and so of the largest request."""
        return self.batch_sizes[-1]

    def client_shape(self, tensor: TensorSpec, rows: int) -> tuple[int, ...]:
        """Return the shape of an input or output in a request of ``rows`` rows, as clients see it."""
        if self.whole:
            return tensor.shape
        return tensor.with_rows(rows) if tensor.rows_axis else (rows, *tensor.shape)

    def client_axis(self, tensor: TensorSpec, axis: int) -> int:
        """Return which axis of a client's tensor is an ``axis`` of `TensorSpec.shape`."""
        return axis if self.whole or axis < tensor.rows_axis else axis + 1

    @property
    def rows_in_front(self) -> bool:
        """Return whether the rows are the first axis of every tensor of clients that has them."""
        return not any(tensor.rows_axis for tensor in (*self.inputs, *self.outputs))

    @property
    def input_row_bytes(self) -> int:
        """Bytes of one row of every input together."""
        return sum(tensor.row_bytes for tensor in self.inputs)

    @property
    def output_row_bytes(self) -> int:
        """Bytes of one row of every output together."""
        return sum(tensor.row_bytes for tensor in self.outputs)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, tensors)) for tensors in (self.inputs, self.outputs))
        return (
            f"ModelSpec({self.public_name!r}, version {self.version}: {inputs} -> {outputs}; "
            f"up to {self.max_rows} rows, {self.weights_bytes / 1e6:.1f} MB)"
        )


def _at_bucket(profiles: dict[str, Profile], name: str) -> dict[str, Profile]:
    """Return the durations of a bucket alone, by the kind of device."""
    return {
        kind: Profile(profile.shaped.get(name, profile.infer_ns), profile.load_ns, spread=profile.spread)
        for kind, profile in profiles.items()
    }
