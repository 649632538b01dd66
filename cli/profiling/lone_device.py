"""One device without a cluster around it: the engine of a worker, called as the worker's threads call it.

For measurements. Weights take real pages, inputs and outputs real IO memory, and every call goes through
`mainspring.worker.engine.Engine`; only queues, windows and sockets are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import tiled
from mainspring.compiler.artifact.manifest import CPU
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import ANY_PYTHON
from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import FOUND_BYTES, PAGE_BYTES, ModelSpec, array_dtype
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import Engine, EngineError, OwnMemory
from mainspring.worker.engines.registry import make_engine
from mainspring.worker.realtime import Rights

NAME = "lone"
Array = npt.NDArray[np.generic]
Sizes = tuple[int, ...]
Result = TypeVar("Result")


class LoneDevice(AbstractContextManager["LoneDevice"]):
    """An engine, and what of a worker it needs to be called.

    Methods raise what the engine raises. As in a worker, `load` may run beside `infer` in another thread;
    otherwise one thread at a time.
    """

    def __init__(self, engine: Engine, pages: int, kind: str = CPU, store: Store | None = None) -> None:
        """``pages`` and ``kind`` are for an engine that does not know them of its device; ``store`` has the
        samples of Python models."""
        self._store = store
        self.engine = engine
        self.pages = engine.pages if isinstance(engine, OwnMemory) else pages
        self.kind = engine.device_kind if isinstance(engine, OwnMemory) else kind
        """Device kind, which selects one of a model's profiles."""
        self._places: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # After Ctrl-C another thread may still compute with the engine's memory until the process ends.
        if kind is None or issubclass(kind, Exception):
            self.engine.close()

    def rows(self, model: ModelSpec, rows: int, sizes: Sizes = ()) -> list[Array]:
        """Return inputs: of a Python model's sample, if it has one, else `random_rows`."""
        if self._store is None or model.target != ANY_PYTHON:
            return random_rows(model, rows, sizes=sizes)
        sample = self._store.executable_info(self._store.manifest(model.stored_name)).sample
        if not sample:
            return random_rows(model, rows, sizes=sizes)
        return [
            tiled(
                np.frombuffer(row.data, array_dtype(tensor.dtype)).reshape(row.shape),
                (rows, *(tensor.at(sizes) if sizes else tensor).shape),
            )
            for row, tensor in zip(sample, model.inputs, strict=True)
        ]

    def prepare(self, model: ModelSpec) -> None:
        """Make the model loadable."""
        self.engine.prepare(model)

    def release(self, model: ModelSpec) -> None:
        """Forget a prepared model, and unload it before if it is resident."""
        self.unload(model)
        self.engine.release(model.name)

    def load(self, model: ModelSpec, first_page: int = 0) -> int:
        """Copy the weights into the pages from ``first_page`` on; return the copy's duration in ns.

        Raises ValueError if the model does not fit into the pages from there on.
        """
        pages = tuple(range(first_page, first_page + model.pages))
        if pages and pages[-1] >= self.pages:
            raise ValueError(f"{model.name} needs pages up to {pages[-1]} and there are {self.pages}")
        self.unload(model)
        duration_ns = self.engine.load(Load(1, NAME, model.name, pages, 0, 0, 0, 0))
        self._places[model.name] = pages
        return duration_ns

    def unload(self, model: ModelSpec) -> None:
        """Give the pages of a resident model up; of another, do nothing."""
        if self._places.pop(model.name, None) is not None:
            self.engine.unload(model.name)

    def infer(self, model: ModelSpec, batch_size: int, sizes: Sizes = ()) -> Callable[[], int]:
        """Return what runs one batch of a resident model and returns the run's duration in ns.

        All batches share the beginning of IO memory, so `fill` it before: what lies there is the input.
        ``sizes`` are of the model's symbols; without, they are at their limits.
        """
        sizes = sizes or tuple(symbol.limit for symbol in model.symbols)
        rows = (batch_size,)
        action = Infer(1, NAME, model.name, batch_size, (0,), rows, (False,), 0, 0, 0, 0, sizes=sizes)
        place, execute = self._place(model, batch_size, sizes), self.engine.execute
        return lambda: execute(action, place)

    def run(
        self, model: ModelSpec, batch_size: int, inputs: Sequence[Array], sizes: Sizes = ()
    ) -> list[Array]:
        """Run one batch of a resident model on these arrays, batch axis first; return copies of its outputs.

        ``sizes`` are of the model's symbols; without, they are at their limits. Raises `ValueError` for an
        array that is not of the model's shape.
        """
        self.fill(model, batch_size, inputs, sizes)
        self.infer(model, batch_size, sizes)()
        place = self._place(model, batch_size, sizes)
        if isinstance(self.engine, OwnMemory):
            failed = self.engine.transfers.receive(place)
            if failed:
                raise EngineError(f"the outputs of {model.name} could not be brought back: {failed}")
        found = []
        for limit, start in zip(model.outputs, place.layout.outputs, strict=True):
            tensor = limit.at(sizes) if sizes else limit
            bytes_, shape = self.engine.io[start : start + batch_size * tensor.row_bytes], tensor.shape
            if tensor.varies:
                shape, size = tensor.found(bytes_.data)
                bytes_ = bytes_[FOUND_BYTES:size]
            found.append(bytes_.copy().view(array_dtype(tensor.dtype)).reshape(batch_size, *shape))
        return found

    def fill(self, model: ModelSpec, batch_size: int, inputs: Sequence[Array], sizes: Sizes = ()) -> None:
        """Put a batch's inputs where `infer` of this batch size and these sizes reads them.

        Raises ValueError if an input has another shape, or the batch takes more IO memory than there is.
        """
        place = self._place(model, batch_size, sizes)
        if isinstance(self.engine, OwnMemory):
            # Outputs of an earlier batch that nobody received may still be on their way into this memory.
            self.engine.transfers.receive(place)
        starts = place.layout.inputs
        for tensor, start, array in zip(model.inputs, starts, inputs, strict=True):
            wanted = (batch_size, *(tensor.at(sizes) if sizes else tensor).shape)
            if array.shape != wanted:
                raise ValueError(f"{model.name}, input {tensor.name}: shape {array.shape} is not {wanted}")
            flat = np.ascontiguousarray(array, tensor.dtype).reshape(-1).view(np.uint8)
            self.engine.io[start : start + flat.size] = flat

    def _place(self, model: ModelSpec, batch_size: int, sizes: Sizes = ()) -> Reservation:
        layout = slot_layout(model, batch_size, sizes)
        if layout.size > self.engine.io.size:
            raise ValueError(
                f"a batch of {batch_size} of {model.name} takes {layout.size} bytes of inputs and outputs, "
                f"and there are {self.engine.io.size}"
            )
        return Reservation(Slot(0, layout.size), layout)


def device_for(models: Sequence[ModelSpec], config: WorkerConfig, copies: int = 2) -> LoneDevice:
    """Return a device as ``config`` says, but with pages for ``copies`` of the largest model, IO memory for
    the largest batch, and on a GPU host memory for the models' weights.
    """
    pages = max(1, copies * max(model.pages for model in models))
    io_bytes = max(slot_layout(model, model.max_rows).size for model in models)
    weights = {model.weights_hash: model.pages * PAGE_BYTES for model in models}
    fitting = msgspec.structs.replace(
        config,
        pages=pages,
        io_bytes=max(MIB, io_bytes),
        host_weights_bytes=config.host_weights_bytes or sum(weights.values()),
    )
    return LoneDevice(make_engine(fitting), pages, config.device_kind, Store(config.store))


def random_rows(model: ModelSpec, rows: int, seed: int = 0, sizes: Sizes = ()) -> list[Array]:
    """Return random inputs of ``rows`` rows: normal numbers, and integers that any embedding has, 0 and 1.

    ``sizes`` are of the model's symbols; without, they are at their limits.
    """
    random = np.random.default_rng(seed)
    made: list[Array] = []
    for tensor in model.inputs:
        dtype, shape = array_dtype(tensor.dtype), (rows, *(tensor.at(sizes) if sizes else tensor).shape)
        whole = dtype.kind in "biuS"
        numbers = random.integers(0, 2, shape) if whole else random.standard_normal(shape)
        made.append(numbers.astype(dtype))
    return made


def as_exec_thread(rights: Rights, function: Callable[[], Result]) -> Result:
    """Run a function in a thread with the core and the priority that a worker's EXEC has."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            rights.claim_exec()
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="exec", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
