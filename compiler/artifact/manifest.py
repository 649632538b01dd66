"""The parts of an artifact: the manifest of a model, and the facts of an executable.

Clockwork, section 5.1: weights apart from kernels. The *executable* is an ONNX graph whose weights are
inputs, or launch plans with their kernels (`compiler.artifact.plan`); the *weights* are one file, laid out
for pages; the *manifest* says which bytes of it are which tensor. Several models may share one executable.
Nothing in this file does any input or output.
"""

from __future__ import annotations

import math
import shlex

import msgspec

from mainspring.compiler.artifact.op_libraries import OpLibrary
from mainspring.messages.model import (
    MOST_BUCKETS,
    MOST_VARYING,
    PAGE_BYTES,
    TEXT_BYTES,
    ModelSpec,
    OpenDim,
    Profile,
    Symbol,
    TensorSpec,
    item_bytes,
    shape_at,
)
from mainspring.messages.sequencing import Sequencing

PROOF_VERSION = 4
"""Version of the rules that prove rows independent: a proof by other rules is made again."""

MOST_ROWS = 1024
"""Largest batch size that a model may be compiled for."""

FORMAT = 1
"""Version of the store's files; a store of another version has to be compiled again."""

ALIGNMENT_BYTES = 64
"""Every tensor begins at a multiple of this: a cache line, and the widest vector register."""

BATCH = "batch"
"""The name of a compiled graph's first dimension."""

CPU = "cpu"
"""The device that an executable runs on unless its facts name another, and the device kind of its profile."""

CUDA = "cuda"
"""An NVIDIA GPU."""

ONNXRUNTIME = "onnxruntime"
TVM = "tvm"
PYTHON = "python"
"""The engine of models that are Python code, each in a process of its own."""
FOR_ANY = "any"
"""The instruction set of a Python model's executable: its code depends on none."""

FP32 = "fp32"
"""Products of FP32 numbers as they are."""

TF32 = "tf32"
"""Products on a GPU's tensor cores of FP32 numbers rounded to 10 bits after the point, with FP32's range."""

FP16 = "fp16"
"""Products on a GPU's tensor cores of numbers rounded to 16-bit floats, and weights in memory as such; sums
and all other arrays stay FP32."""

PRECISIONS = (FP32, TF32, FP16)

ENTRY_FILES = {ONNXRUNTIME: "graph.onnx", TVM: "plans.json", PYTHON: "folder.tar"}
"""File of an executable, by engine, whose SHA-256 is the executable's name."""


class GraphTensor(msgspec.Struct, frozen=True):
    """A tensor of an executable; its shape is without the batch axis if it has one."""

    name: str
    dtype: str
    """A numpy dtype name."""
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor, or of one row of it."""
        return math.prod(self.shape) * item_bytes(self.dtype)


class IoTensor(GraphTensor, frozen=True):
    """An input or output of an executable."""

    open: tuple[OpenDim, ...] = ()
    """Dimensions that follow from symbols, as in `TensorSpec.open`."""
    varies: tuple[int, ...] = ()
    """Axes of an output whose sizes follow from values, as in `TensorSpec.varies`."""

    def at(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return its shape for one size of each symbol."""
        return shape_at(self.shape, self.open, sizes)


class WeightTensor(GraphTensor, frozen=True):
    """One weight of a model: which input of the executable it is, and where its bytes are.

    An extent's pages are adjacent in the arena, so with ``pages`` the arena pages of a LOAD in the order of
    the weights file, the tensor is at ``base + pages[offset // PAGE_BYTES] * PAGE_BYTES + offset %
    PAGE_BYTES``, in one piece, even if it spans pages.
    """

    extent: int
    """Index in `Manifest.extents` of the run of pages that holds it."""
    offset: int
    """First byte, counted from the beginning of the weights file."""


class Measured(msgspec.Struct, frozen=True):
    """Durations and memory of an executable on the compiling machine, for all models that share it."""

    infer_ns: dict[int, int] = {}
    """Seed duration of an INFER, by batch size."""
    load_ns: int = 0
    """Seed duration of a LOAD."""
    workspace_bytes: dict[int, int] = {}
    """Memory for activations, by batch size; of an executable with symbols at their limits."""
    shaped_ns: dict[str, dict[int, int]] = {}
    """Seed durations of an executable with symbols, by bucket, as in `Profile.shaped`."""
    spread: float = 0.0
    """Spread of the durations over different values, as in `Profile.spread`."""
    packs: dict[str, int] = {}
    """Nodes that lay out their weights in every run, as in `Profile.packs`."""
    beside_stock: dict[int, float] = {}
    """Execution time compared with a stock session's, as in `Profile.beside_stock`."""


class SampleRow(msgspec.Struct, frozen=True):
    """A row of an input."""

    shape: tuple[int, ...]
    """Shape of the row, with an axis of one row in front."""
    data: bytes


class PythonFacts(msgspec.Struct, frozen=True):
    """The facts about a Python model's process, which are a part of its executable."""

    name: str
    """Name of the model: models have no process in common, though their folders be equal."""
    memory_bytes: int
    """Data that the process may have (RLIMIT_DATA)."""
    start_ns: int
    """Time in which it has to be ready."""
    timeout_ns: int = 0
    """Time that a batch may take; 0 for the default, which follows from what was measured."""
    python: str = ""
    """Path of its Python, from the store's folder on if it is not absolute; empty for the worker's own."""
    whole: bool = False
    """True if its tensors have no axis of rows."""


class ExecutableInfo(msgspec.Struct, frozen=True):
    """The facts of an executable, stored beside its graph or plans as ``info.json``.

    For the CPU a saved graph holds the layout that ONNX Runtime chose for one instruction set, so it may only
    be opened where ``instruction_set`` and ``onnxruntime`` are the same. Kernels need only the same
    ``instruction_set``.
    """

    executable: str
    """SHA-256 of the engine's file of `ENTRY_FILES`."""
    instruction_set: str
    """Instruction set by its name in `target.instruction_set`, such as ``x86_64-avx2``; ``portable`` for a
    GPU's."""
    onnxruntime: str
    """Version of ONNX Runtime that optimised the graph, or that folded it before TVM read it."""
    cpu_flags: tuple[str, ...]
    """Vector extensions of the compiling machine; for people, not compared."""
    weights: tuple[GraphTensor, ...]
    inputs: tuple[IoTensor, ...]
    """Inputs in the order of `Manifest.inputs`; shapes without the batch axis."""
    outputs: tuple[IoTensor, ...]
    """Outputs in the order of `Manifest.outputs`; shapes without the batch axis."""
    measured: Measured = Measured()
    format: int = FORMAT
    engine: str = ONNXRUNTIME
    """The engine that runs it: one of `ENTRY_FILES`."""
    device: str = CPU
    """The device that it runs on: `CPU` or `CUDA`."""
    symbols: tuple[Symbol, ...] = ()
    """Open dimensions besides the batch, as in `ModelSpec.symbols`."""
    choices: tuple[dict[int, int], ...] = ()
    """Numbers that fill inputs, by their index, with which it may run where it does not on zeros."""
    libraries: tuple[OpLibrary, ...] = ()
    """Libraries of operators that it was compiled with, which ONNX Runtime has to have."""
    sample: tuple[SampleRow, ...] = ()
    """A row of each input with which it runs, where it runs on neither."""
    python: PythonFacts | None = None
    """Facts about the process of a Python model; None for another."""


class Source(msgspec.Struct, frozen=True):
    """The origin of a model, so that it can be compiled again."""

    kind: str
    """``onnx`` for such a file, ``estimator`` or ``program`` for one that was converted, ``zoo`` for an
    architecture of the zoo with seeded weights, ``python`` for a folder with code."""
    path: str = ""
    """The file, or the zoo's name of the architecture."""
    sha256: str = ""
    """SHA-256 of the file."""
    seed: int = 0
    """Seed of a zoo model's weights."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Dimensions that inputs were given when the file was compiled, the batch first."""
    engine: str = ONNXRUNTIME
    """The requested engine, which may be ``auto``."""
    device: str = CPU
    """The requested device."""
    precision: str = FP32
    """One of `PRECISIONS`."""
    whole: bool = False
    """True if the shapes are whole, without an axis for rows."""
    most: dict[str, int] = {}
    """Limits that open dimensions were given when the file was compiled, by name."""
    trusted: bool = False
    """True if the file was read with the user's trust, because to read it can run code."""
    pad: dict[str, float] = {}
    """Values that inputs with open dimensions were said to be padded with, by name."""
    text_bytes: int = TEXT_BYTES
    """Bytes that each text of inputs and outputs may have."""
    sequences: str = ""
    """The options of the command line that said which tensors are a state, each after a space."""
    libraries: tuple[str, ...] = ()
    """Libraries of operators that were allowed, if the model needs one."""
    python: str = ""
    """The Python that a Python model was given; empty for none."""

    @property
    def options(self) -> str:
        """The requested options of the command line, each after a space."""
        options = [f" --shape {name}={','.join(map(str, dims))}" for name, dims in self.shapes.items()]
        options += [f" --max {name}={size}" for name, size in self.most.items()]
        options += [f" --pad {name}={value:g}" for name, value in self.pad.items()]
        options += [f" --engine {self.engine}"] if self.engine != ONNXRUNTIME else []
        options += [f" --device {self.device}"] if self.device != CPU else []
        options += [f" --precision {self.precision}"] if self.precision != FP32 else []
        options += [" --whole"] if self.whole else []
        options += [" --trust"] if self.trusted else []
        options += [f" --text-bytes {self.text_bytes}"] if self.text_bytes != TEXT_BYTES else []
        options += [f" --op-library {shlex.quote(each)}" for each in self.libraries]
        options += [f" --python {shlex.quote(self.python)}"] if self.python else []
        options += [self.sequences]
        return "".join(options)

    def copy_options(self, name: str) -> str:
        """Return the zoo's options that make a copy of this name and seed; intact copies stay."""
        number = name.removeprefix(f"{self.path}-")
        earlier = int(number) - 1 if number != name and number.isdecimal() else 0
        copies = f" --copies {max(earlier + 1, 2)}" if number != name else ""
        return f"{copies} --seed {self.seed - earlier}" if self.seed > earlier else copies


class Independence(msgspec.Struct, frozen=True):
    """The result of the attempt to prove that each row's outputs depend on that row alone."""

    version: int
    """`PROOF_VERSION` of the rules."""
    mixes: str = ""
    """Reason, with the node, why requests of different callers may not share an execution; empty if they
    provably can't change each other's answers."""


class Verification(msgspec.Struct, frozen=True):
    """The comparison of the artifact with a stock ONNX Runtime session on the original model."""

    relative_tolerance: float
    absolute_tolerance: float
    largest_difference: float
    """Largest absolute difference of any output element, at any batch size."""
    rows: int
    """Rows compared."""
    on: str = CPU
    """The device that the kernels ran on. `CPU` for an executable for a GPU: its line of calls, its packed
    weights and its functions were compared through kernels for the CPU, which round factors where the GPU's
    do; its own kernels were not run."""
    opinion: str = ""
    """Effect of ONNX Runtime's own optimisations on the original's answers, and the answers that count; empty
    if they change none."""


class Manifest(msgspec.Struct, frozen=True):
    """Everything about one stored model except its bytes."""

    name: str
    executable: str
    """SHA-256 of the executable's graph or plans."""
    weights_hash: str
    """SHA-256 of the weights file."""
    weights_bytes: int
    """Length of the weights file. Its last page may be short; all others are whole."""
    extents: tuple[int, ...]
    """Runs of adjacent pages, in pages, in the order of the weights file."""
    tensors: tuple[WeightTensor, ...]
    inputs: tuple[TensorSpec, ...]
    """Inputs by their names in the original model, in the executable's order."""
    outputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    profiles: dict[str, Profile]
    source: Source
    verification: Verification
    workspace_bytes: int = 0
    """Memory for activations at the largest batch size: measured, or from the plans."""
    format: int = FORMAT
    engine: str = ONNXRUNTIME
    """The engine that the executable is for."""
    independence: Independence | None = None
    """None in a manifest that is older than proofs."""
    precision: str = FP32
    """Precision that products are rounded to: one of `PRECISIONS`."""
    whole: bool = False
    """True if the model has no axis for rows: a request is one run, with tensors of exactly these shapes."""
    symbols: tuple[Symbol, ...] = ()
    """Open dimensions besides the batch."""
    pad: dict[str, float] = {}
    """Value with which each input may be padded, as in `ModelSpec.pad`."""
    at_ceilings: bool = False
    """True if every request is padded to its bucket's ceilings, as in `ModelSpec.at_ceilings`."""
    sequencing: Sequencing | None = None
    """States and controls of a model whose requests come in sequences, as in `ModelSpec.sequencing`."""
    target: str = ""
    """Hosts that it is for (`messages.targets`); empty in a manifest that is older than targets."""
    verified: bool = True
    """False if it was stored on the operator's word: it ran on no sample, and was compared with nothing."""

    @property
    def unshared(self) -> str:
        """Return why an execution is for one row of one request only; empty if requests may share
        executions."""
        if self.whole:
            return ""
        if self.engine == PYTHON and self.independence is not None:
            # The operator's word, which no rules make obsolete.
            return self.independence.mixes
        if self.independence is None or self.independence.version != PROOF_VERSION:
            return "nothing proves that its rows are independent"
        return self.independence.mixes

    @property
    def pages(self) -> int:
        """Pages that the weights occupy."""
        return sum(self.extents)

    def spec(self) -> ModelSpec:
        """Return what the controller, the gateways and the workers need to know of the model.

        Without a proof that rows are independent, batches have one row, whatever sizes were compiled.
        """
        unshared = self.unshared
        return ModelSpec(
            name=self.name,
            weights_hash=self.weights_hash,
            executable=self.executable,
            batch_sizes=(1,) if unshared else self.batch_sizes,
            weights_bytes=self.weights_bytes,
            extents=self.extents,
            inputs=self.inputs,
            outputs=self.outputs,
            profiles=self.profiles,
            workspace_bytes=self.workspace_bytes,
            unshared=unshared,
            whole=self.whole,
            symbols=self.symbols,
            pad=self.pad if self.at_ceilings or not unshared else {},
            at_ceilings=self.at_ceilings,
            sequencing=self.sequencing,
            target=self.target,
            verified=self.verified,
        )

    def problems(self) -> list[str]:
        """Return contradictions in the manifest, so that an altered file is found here and not by a crash."""
        found = []
        if self.engine not in ENTRY_FILES:
            found.append(f"engine {self.engine!r} is none of {', '.join(ENTRY_FILES)}")
        if self.precision not in PRECISIONS:
            found.append(f"precision {self.precision!r} is none of {', '.join(PRECISIONS)}")
        if (
            not self.batch_sizes
            or list(self.batch_sizes) != sorted({*self.batch_sizes})
            or self.batch_sizes[0] < 1
        ):
            found.append(f"batch sizes {self.batch_sizes} are not ascending positive numbers")
        if self.batch_sizes[:1] != (1,) and self.unshared:
            found.append(
                f"its batches are of {self.batch_sizes[0]} rows at least, and {self.unshared}, so requests "
                "can't be run one at a time"
            )
        if self.whole and self.batch_sizes != (1,):
            found.append(f"it has no axis for rows and batches of {self.batch_sizes}")
        if any(pages < 1 for pages in self.extents):
            found.append(f"extents {self.extents} are not all positive")
        if not (self.pages - 1) * PAGE_BYTES < self.weights_bytes <= self.pages * PAGE_BYTES and self.pages:
            found.append(f"{self.weights_bytes} bytes of weights do not fill {self.pages} pages")
        found.extend(filter(None, (self._misplaced(tensor) for tensor in self.tensors)))
        return found + self._open_problems()

    def _open_problems(self) -> list[str]:
        """Return contradictions in symbols, and in dimensions that follow from them."""
        found = []
        for each in self.symbols:
            if not each.ceilings or list(each.ceilings) != sorted({*each.ceilings}) or each.least < 1:
                found.append(f"ceilings {each.ceilings} of {each.name} are not ascending positive numbers")
            elif each.least > each.limit or each.step < 1:
                found.append(f"{each.name} is from {each.sizes}")
        if math.prod(len(each.ceilings) for each in self.symbols) > MOST_BUCKETS:
            found.append(f"its symbols have more than {MOST_BUCKETS} buckets")
        if found:
            return found
        opened = {tensor.name for tensor in self.inputs if tensor.open}
        if self.pad and {*self.pad} != opened:
            found.append(f"it is padded in {sorted(self.pad)}, and {sorted(opened)} have open dimensions")
        if self.at_ceilings and not (self.pad and self.symbols):
            found.append("it runs at the ceilings of its buckets, and nothing says how it is padded to these")
        limits = tuple(each.limit for each in self.symbols)
        found += [
            f"output {tensor.name} can't vary along its axes {tensor.varies}"
            for tensor in self.outputs
            if not all(0 <= axis < len(tensor.shape) for axis in tensor.varies)
            or (tensor.varies and (self.batch_sizes != (1,) or len(tensor.varies) > MOST_VARYING))
        ]
        for tensor in (*self.inputs, *self.outputs):
            if not 0 <= tensor.rows_axis <= len(tensor.shape):
                found.append(f"{tensor.name} can't have its rows as axis {tensor.rows_axis}")
            terms = [term for dim in tensor.open for term in dim.every_term]
            if any(not 0 <= term.symbol < len(limits) or term.times < 1 or term.over < 1 for term in terms):
                found.append(f"a dimension of {tensor.name} follows from no symbol")
            elif any(
                not 0 <= dim.axis < len(tensor.shape) or dim.scale < 1 or not dim.terms for dim in tensor.open
            ):
                found.append(f"a dimension of {tensor.name} is none of its shape's")
            elif tensor.at(limits).shape != tensor.shape:
                found.append(f"{tensor.name} is {tensor.at(limits).shape} at the limits, not {tensor.shape}")
        return found

    def _misplaced(self, tensor: WeightTensor) -> str:
        """Say what is wrong with the place of ``tensor``; empty if nothing is."""
        if not 0 <= tensor.extent < len(self.extents):
            return f"tensor {tensor.name} is in extent {tensor.extent} of {len(self.extents)}"
        begin = sum(self.extents[: tensor.extent]) * PAGE_BYTES
        end = min(begin + self.extents[tensor.extent] * PAGE_BYTES, self.weights_bytes)
        if tensor.offset % ALIGNMENT_BYTES:
            return f"tensor {tensor.name} at {tensor.offset} is not aligned to {ALIGNMENT_BYTES} bytes"
        if min(tensor.shape, default=0) < 0 or not begin <= tensor.offset <= end - tensor.size_bytes:
            return f"tensor {tensor.name} is not inside extent {tensor.extent}"
        return ""
