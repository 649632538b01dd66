"""A worker's models: the prepared ones, and the owner of each page of weights memory (Clockwork, 5.2).

The controller chooses models and page numbers; the worker only refuses the impossible. A model with
outstanding actions is *pinned*: neither its pages nor its preparation may be given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from mainspring.messages.actions import Infer, Load, Open, Prepare
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.model import DTYPES, Artifact, ModelSpec, TensorSpec, is_dtype
from mainspring.transport.holes import Holes
from mainspring.worker.core.jobs import Ending, Slot, SlotLayout

ALIGNMENT_BYTES = 64
"""Every tensor starts at a multiple of this: a cache line, which also suits vector instructions."""


def align(size: int) -> int:
    """Round up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def slot_layout(model: ModelSpec, batch_size: int, sizes: tuple[int, ...] = ()) -> SlotLayout:
    """Lay a batch out; raise `ValueError` for a dtype or a shape that no slot could hold.

    ``sizes`` has one size of each symbol; without, shapes are those at the limits.
    """
    cursor = 0
    starts: list[int] = []
    for tensor in (*model.inputs, *model.outputs):
        starts.append(cursor)
        cursor += align(batch_size * _row_bytes(tensor.at(sizes) if sizes else tensor))
    split = len(model.inputs)
    return SlotLayout(tuple(starts[:split]), tuple(starts[split:]), max(cursor, ALIGNMENT_BYTES))


def _row_bytes(tensor: TensorSpec) -> int:
    if not is_dtype(tensor.dtype):
        raise ValueError(
            f"tensor {tensor.name}: dtype {tensor.dtype!r} is none of {', '.join(DTYPES)}, "
            "nor slots of bytes such as S64"
        )
    if any(axis < 0 for axis in tensor.shape):
        raise ValueError(f"tensor {tensor.name}: shape {tensor.shape} has a negative axis")
    return tensor.row_bytes


class IoMemory:
    """First-fit allocator of slots; sizes are rounded up to `ALIGNMENT_BYTES`."""

    def __init__(self, size: int) -> None:
        self.size = size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._holes = Holes(self.size)
        self._slots: dict[int, Slot] = {}

    def allocate(self, size: int) -> Slot | None:
        """Return a slot of at least ``size`` bytes (one or more), or None if no hole is large enough."""
        wanted = align(size)
        offset = self._holes.take(wanted)
        if offset < 0:
            return None
        slot = Slot(offset, wanted)
        self._slots[offset] = slot
        return slot

    def free(self, slot: Slot) -> None:
        """Give an allocated slot back; raise `KeyError` if it isn't allocated."""
        del self._slots[slot.offset]
        self._holes.give(slot.offset, slot.size)

    @property
    def slots(self) -> int:
        """Slots allocated."""
        return len(self._slots)

    def validate(self) -> None:
        """Raise `AssertionError` unless holes and slots tile the memory and no two holes touch."""
        self._holes.validate([(slot.offset, slot.size) for slot in self._slots.values()], "IO memory")


class PageTable:
    """Owner of each page; a model's pages are *loading* until `confirm`, then *resident*."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"a page table needs at least one page, not {pages}")
        self._owner: list[str | None] = [None] * pages
        self._loading: dict[str, tuple[int, ...]] = {}
        self._resident: dict[str, tuple[int, ...]] = {}
        self._free = pages

    def __len__(self) -> int:
        return len(self._owner)

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return self._free

    def malformed(self, extents: Sequence[int], pages: Sequence[int]) -> str:
        """Return why ``pages`` could never hold these extents, or an empty string."""
        if len(pages) != sum(extents):
            return f"{len(pages)} pages named, the model needs {sum(extents)}"
        if any(not 0 <= page < len(self._owner) for page in pages):
            return f"a page is out of range: this worker has pages 0 to {len(self._owner) - 1}"
        if len(set(pages)) != len(pages):
            return "a page is named twice"
        start = 0
        for index, length in enumerate(extents):
            run = pages[start : start + length]
            if any(page != run[0] + step for step, page in enumerate(run)):
                return f"extent {index} needs {length} adjacent pages in ascending order"
            start += length
        return ""

    def occupied(self, pages: Iterable[int]) -> str:
        """Name the first of ``pages`` that has an owner, or return an empty string."""
        for page in pages:
            owner = self._owner[page]
            if owner is not None:
                return f"page {page} belongs to {owner}"
        return ""

    def acquire(self, model: str, pages: tuple[int, ...]) -> None:
        """Give free pages to a model that has none; they count as loading."""
        for page in pages:
            self._owner[page] = model
        self._loading[model] = pages
        self._free -= len(pages)

    def confirm(self, model: str) -> None:
        """Count the model as resident: its weights are all in its pages."""
        self._resident[model] = self._loading.pop(model)

    def give_up(self, model: str) -> None:
        """Free the pages of a resident or loading model."""
        pages = self._resident.pop(model, None)
        if pages is None:
            pages = self._loading.pop(model)
        for page in pages:
            self._owner[page] = None
        self._free += len(pages)

    def resident_pages(self, model: str) -> tuple[int, ...] | None:
        """Pages of a resident model, in the order of its weights file; None if it is not resident."""
        return self._resident.get(model)

    def loading(self) -> list[str]:
        """Models whose LOAD is running."""
        return list(self._loading)

    def residents(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Resident models with their pages, in the order in which they became resident."""
        return self._resident.items()

    def validate(self) -> None:
        """Raise `AssertionError` unless each page has one owner at most and free + owned = all."""
        both = [model for model in self._loading if model in self._resident]
        assert not both, f"both loading and resident: {both}"
        expected: list[str | None] = [None] * len(self._owner)
        for model, pages in [*self._loading.items(), *self._resident.items()]:
            for page in pages:
                assert expected[page] is None, f"page {page} belongs to {expected[page]} and to {model}"
                expected[page] = model
        assert expected == self._owner, f"owners differ from the models' pages: {self._owner} != {expected}"
        assert self._free == self._owner.count(None), f"free is {self._free}, not {self._owner.count(None)}"


class PreparedModel:
    """A model that may be loaded, and the layouts of its batches."""

    def __init__(self, model: ModelSpec, page_bytes: int) -> None:
        """Raise `ValueError`, which names the fault, for a model that no worker could run."""
        sizes = model.batch_sizes
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"batch sizes must be ascending and positive, not {sizes}")
        if any(extent < 1 for extent in model.extents):
            raise ValueError(f"extents must be positive, not {model.extents}")
        if model.pages * page_bytes < model.weights_bytes:
            raise ValueError(
                f"{model.pages} pages of {page_bytes} bytes can't hold {model.weights_bytes} bytes"
            )
        self.model = model
        self.layouts: dict[int, SlotLayout] = {size: slot_layout(model, size) for size in sizes}
        """Layouts by batch size; of a model with symbols at their limits."""
        self._bucket_bytes: dict[tuple[int, tuple[int, ...]], int] = {}

    def place(self, action: Infer) -> tuple[SlotLayout, int]:
        """Return where the tensors of an Infer without a fault go, and the bytes of its slot.

        Of a model with symbols the tensors have exactly the action's sizes, and the slot is its bucket's.
        """
        if not action.sizes:
            layout = self.layouts[action.batch_size]
            return layout, layout.size
        bucket = self.model.bucket_of(action.sizes)
        key = (action.batch_size, bucket)
        if key not in self._bucket_bytes:
            self._bucket_bytes[key] = slot_layout(self.model, action.batch_size, bucket).size
        return slot_layout(self.model, action.batch_size, action.sizes), self._bucket_bytes[key]

    def infer_fault(self, action: Infer) -> Ending | None:
        """Return why the Infer can never begin, or None."""
        if action.earliest_ns > action.latest_ns:
            return _empty_window(action)
        if action.batch_size not in self.layouts:
            sizes = self.model.batch_sizes
            return Status.BAD_ACTION, f"batch size {action.batch_size} is none of {action.model}'s {sizes}"
        if action.sizes or self.model.symbols:
            fault = self._sizes_fault(action)
            if fault is not None:
                return fault
        ids, rows = action.request_ids, action.rows
        if not ids or len(set(ids)) != len(ids):
            return Status.BAD_ACTION, "request ids must be at least one, each named once"
        if len(rows) != len(ids) or any(count < 1 for count in rows):
            return Status.BAD_ACTION, f"each of {len(ids)} requests needs one row or more, not {rows}"
        if sum(rows) > action.batch_size:
            return Status.BAD_ACTION, f"{sum(rows)} rows are more than the batch of {action.batch_size}"
        return self._padding_fault(action) if action.request_sizes else None

    def _sizes_fault(self, action: Infer) -> Ending | None:
        """Return why the model can't run at the Infer's sizes, None if it can."""
        try:
            ceilings = self.model.bucket_of(action.sizes)
        except ValueError as error:
            return Status.BAD_ACTION, f"sizes of {action.model}: {error}"
        if self.model.at_ceilings and action.sizes != ceilings:
            known = f"it runs at the ceilings of its buckets, here {ceilings}, not at {action.sizes}"
            return Status.BAD_ACTION, f"sizes of {action.model}: {known}"
        return None

    def _padding_fault(self, action: Infer) -> Ending | None:
        """Return why requests of these different sizes can't share a batch, or None."""
        if not self.model.pad:
            return Status.BAD_ACTION, f"requests of {action.model} can't be padded: their sizes must be equal"
        if len(action.request_sizes) != len(action.request_ids):
            return Status.BAD_ACTION, (
                f"{len(action.request_sizes)} sizes were given for {len(action.request_ids)} requests"
            )
        for sizes in action.request_sizes:
            try:
                self.model.bucket_of(sizes)
            except ValueError as error:
                return Status.BAD_ACTION, f"sizes of {action.model}: {error}"
            if any(own > most for own, most in zip(sizes, action.sizes, strict=True)):
                larger = f"a request of sizes {sizes} is larger than its batch of {action.sizes}"
                return Status.BAD_ACTION, larger
        return None


class Residency:
    """Prepared models, the page table, and which models are pinned."""

    def __init__(self, pages: int, page_bytes: int, io_bytes: int) -> None:
        """``io_bytes``: the IO memory, which must have room for a batch of any model."""
        self.pages = PageTable(pages)
        self.page_bytes = page_bytes
        self.io_bytes = io_bytes
        self._prepared: dict[str, PreparedModel] = {}
        self._closed: dict[str, ModelSpec] = {}
        """Models whose weights are in place, and whose executables are to be opened."""
        self._pins: dict[str, int] = {}

    def find(self, name: str) -> PreparedModel | None:
        """A prepared model, or None."""
        return self._prepared.get(name)

    def resolved(self, action: Infer) -> Infer:
        """Return an Infer of a bucket, such as ``bert@128``, as one of the prepared model.

        Without sizes of its own it is of the bucket's ceilings.
        """
        name, at, bucket = action.model.rpartition("@")
        if not at or action.model in self._prepared or name not in self._prepared:
            return action
        ceilings = bucket.split("x")
        if not bucket.replace("x", "0").isdecimal() or "" in ceilings:
            return action
        sizes = action.sizes or tuple([int(each) for each in ceilings])
        return msgspec.structs.replace(action, model=name, sizes=sizes)

    def is_resident(self, name: str) -> bool:
        """Return whether the model's weights are all in its pages."""
        return self.pages.resident_pages(name) is not None

    def add(self, model: ModelSpec) -> None:
        """Count the model as prepared; raise `ValueError` if no worker could run it."""
        self._closed.pop(model.name, None)
        self._prepared[model.name] = PreparedModel(model, self.page_bytes)

    def add_closed(self, model: ModelSpec) -> None:
        """Note that all of a model is in place but its executable."""
        self._closed[model.name] = model

    def closed(self, name: str) -> ModelSpec | None:
        """Return a model whose executable is to be opened, or None."""
        return self._closed.get(name)

    def forget_closed(self, name: str) -> None:
        """Forget a model whose executable is not opened after all."""
        self._closed.pop(name, None)

    def forget_all_closed(self) -> list[str]:
        """Forget all of them that are not pinned, and return their names."""
        names = [name for name in self._closed if name not in self._pins]
        for name in names:
            del self._closed[name]
        return names

    def open_fault(self, action: Open) -> Ending | None:
        """Return why the Open can never begin, or None."""
        if action.earliest_ns > action.latest_ns:
            return _empty_window(action)
        if action.model in self._closed:
            return None
        if action.model in self._prepared:
            return Status.BAD_ACTION, f"the executable of {action.model} is open already"
        return Status.NOT_PREPARED, f"the weights of {action.model} are not in place: prepare it first"

    def pin(self, name: str) -> None:
        """Count one more outstanding action on the model."""
        self._pins[name] = self._pins.get(name, 0) + 1

    def unpin(self, name: str) -> None:
        """Count one outstanding action on the model less."""
        left = self._pins[name] - 1
        if left:
            self._pins[name] = left
        else:
            del self._pins[name]

    def unload(self, name: str) -> Ending:
        """Give a resident model's pages up, unless it is pinned."""
        if name in self._pins:
            return Status.BUSY, f"{self._pins[name]} actions on {name} are outstanding"
        if not self.is_resident(name):
            return Status.NOT_RESIDENT, f"model {name} is not resident"
        self.pages.give_up(name)
        return Status.OK, ""

    def release(self, name: str) -> Ending:
        """Forget a prepared model, unless it is pinned or resident."""
        if name in self._pins:
            return Status.BUSY, f"{self._pins[name]} actions on {name} are outstanding"
        if self.is_resident(name):
            return Status.BUSY, f"model {name} is resident: unload it first"
        if self._prepared.pop(name, None) is None and self._closed.pop(name, None) is None:
            return Status.NOT_PREPARED, f"model {name} is not prepared"
        return Status.OK, ""

    def load_fault(self, action: Load) -> Ending | None:
        """Return why the Load can never begin, or None."""
        prepared = self._prepared.get(action.model)
        if prepared is None:
            return Status.NOT_PREPARED, f"model {action.model} is not prepared"
        if action.earliest_ns > action.latest_ns:
            return _empty_window(action)
        fault = self.pages.malformed(prepared.model.extents, action.pages)
        return (Status.BAD_PAGES, fault) if fault else None

    def obstacle(self, action: Infer | Load | Prepare | Open) -> Ending | None:
        """Return how an action ends instead of beginning at this moment, or None."""
        if isinstance(action, Infer | Open):
            return None
        if isinstance(action, Load):
            if self.is_resident(action.model):
                return Status.BAD_ACTION, f"model {action.model} is resident already: unload it first"
            occupied = self.pages.occupied(action.pages)
            return (Status.BAD_PAGES, occupied) if occupied else None
        return self._prepare_obstacle(action.model)

    def resident(self) -> tuple[Resident, ...]:
        """The resident models, in the order in which they were loaded."""
        return tuple(
            Resident(name, self._prepared[name].model.artifact, pages)
            for name, pages in self.pages.residents()
        )

    def prepared(self) -> dict[str, Artifact]:
        """The prepared artifact of each model, by name."""
        return {name: prepared.model.artifact for name, prepared in self._prepared.items()}

    def validate(self, pins: dict[str, int]) -> None:
        """Raise `AssertionError` unless each page has its one owner and ``pins`` are the pinned models."""
        self.pages.validate()
        assert pins == self._pins, f"outstanding by model is {pins}, pinned are {self._pins}"
        for name, _ in self.pages.residents():
            assert name in self._prepared, f"{name} is resident and not prepared"
        for name in self.pages.loading():
            assert name in self._prepared, f"{name} is loading and not prepared"
        both = self._prepared.keys() & self._closed.keys()
        assert not both, f"prepared, and yet to be opened: {sorted(both)}"

    def _prepare_obstacle(self, model: ModelSpec) -> Ending | None:
        prepared = self._prepared.get(model.name)
        closed = self._closed.get(model.name)
        if closed is not None and closed.artifact != model.artifact:
            return Status.BUSY, f"{model.name} is there with another artifact: release it first"
        if prepared is None:
            try:
                layouts = PreparedModel(model, self.page_bytes).layouts
            except ValueError as error:
                return Status.BAD_ACTION, f"model {model.name}: {error}"
            largest = max(layouts)
            size = layouts[largest].size
            if size > self.io_bytes:
                return Status.NO_IO_MEMORY, (
                    f"inputs and outputs of a batch of {largest} of {model.name} have {size:,} bytes, the "
                    f"worker's io_bytes is {self.io_bytes:,}: set it higher, or compile the model with "
                    "smaller --batch-sizes"
                )
            return None
        if prepared.model.artifact == model.artifact:
            return Status.OK, "prepared already"
        return Status.BUSY, f"{model.name} is prepared with another artifact: release it first"


def _empty_window(action: Load | Infer | Open) -> Ending:
    return Status.BAD_ACTION, f"earliest {action.earliest_ns} is after latest {action.latest_ns}"
