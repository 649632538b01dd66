"""A device of a town: it takes time, fails in many ways, and its outputs tell the weights that made them.

Each page holds a tag of the weights that were copied there. An INFER's outputs are its inputs and the tag
that its model's pages have when it ends, so that outputs of another request's inputs, of another model's
pages, or of pages that were overwritten meanwhile are found by whoever gets them.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.worker.core.jobs import Executor, Job, Reservation
from mainspring.worker.engine import DeviceLost, EngineError

KIND: Final = "town"
"""Kind of the devices of a town."""
TAG_BYTES: Final = 8
ROW_BYTES: Final = 16
"""Bytes of one row of inputs."""
PREPARE_NS: Final = 1_000_000
IO_BYTES: Final = 1 << 20
FOREVER_NS: Final = 1 << 60


def model(name: str, pages: int, infer_ms: float, load_ms: float, weights: str = "") -> ModelSpec:
    """Return a model of a town; ``weights``: what its weights are told apart by, its name if empty."""
    sizes = {size: round(infer_ms * 1e6 * (0.6 + 0.4 * size)) for size in (1, 2, 4)}
    return ModelSpec(
        name=name,
        weights_hash=hashlib.sha256((weights or name).encode()).hexdigest(),
        executable=hashlib.sha256(f"{infer_ms} ms".encode()).hexdigest(),
        batch_sizes=tuple(sizes),
        weights_bytes=pages << 24,
        extents=(1,) * pages,
        inputs=(TensorSpec("x", "uint8", (ROW_BYTES,)),),
        outputs=(TensorSpec("y", "uint8", (ROW_BYTES + TAG_BYTES,)),),
        profiles={KIND: Profile(sizes, round(load_ms * 1e6))},
    )


def tag_of(spec: ModelSpec) -> bytes:
    """Return the tag of a model's weights."""
    return bytes.fromhex(spec.weights_hash[: 2 * TAG_BYTES])


def outputs_of(spec: ModelSpec, inputs: bytes) -> bytes:
    """Return what a model answers to rows of inputs."""
    rows = [inputs[at : at + ROW_BYTES] for at in range(0, len(inputs), ROW_BYTES)]
    return b"".join([row + tag_of(spec) for row in rows])


class TownEngine:
    """A device with the methods of `worker.engine.Engine`; its time passes outside of it."""

    def __init__(self, pages: int) -> None:
        self.io = np.zeros(IO_BYTES, np.uint8)
        self.slow = 1.0
        """Factor by which everything takes longer than usual."""
        self.hung = False
        """True while nothing that begins ends."""
        self.failing = self.lost = self.full = False
        """True while INFERs fail, the device is lost, and LOADs find no memory, each."""
        self.memory: list[bytes] = [b"\0" * TAG_BYTES] * pages
        """Tag of the weights in each page."""
        self._models: dict[str, ModelSpec] = {}
        self._pages: dict[str, tuple[int, ...]] = {}

    def duration_ns(self, executor: Executor, job: Job) -> int:
        """Return how long a job takes that begins now."""
        if self.hung and executor is not Executor.PREPARE:
            return FOREVER_NS
        action, profile = job.action, job.model.profiles[KIND]
        if isinstance(action, Infer):
            nominal_ns = profile.infer_ns[action.batch_size]
        else:
            nominal_ns = profile.load_ns if isinstance(action, Load) else PREPARE_NS
        return max(1, round(nominal_ns * self.slow))

    def corrupt(self, page: int) -> None:
        """Flip a bit of a page."""
        tag = self.memory[page]
        self.memory[page] = bytes([tag[0] ^ 1]) + tag[1:]

    # --- what executors call, at the end of each job ---

    def prepare(self, model: ModelSpec) -> None:
        """Know a model."""
        self._models[model.name] = model

    def release(self, name: str) -> None:
        """Forget a model."""
        self._models.pop(name, None)

    def load(self, action: Load) -> int:
        """Have the weights in the pages."""
        self._raise_if_lost()
        if self.full:
            raise EngineError("out of memory")
        for page in action.pages:
            self.memory[page] = tag_of(self._models[action.model])
        self._pages[action.model] = action.pages
        return 1

    def unload(self, name: str) -> None:
        """Forget where a model's weights are."""
        self._pages.pop(name, None)

    def execute(self, action: Infer, io: Reservation) -> int:
        """Have a batch's outputs behind its inputs."""
        self._raise_if_lost()
        if self.failing:
            raise EngineError("the device failed")
        begin, end = (io.slot.offset + part[0] for part in (io.layout.inputs, io.layout.outputs))
        rows, out = action.batch_size, ROW_BYTES + TAG_BYTES
        found = self.io[end : end + rows * out].reshape(rows, out)
        found[:, :ROW_BYTES] = self.io[begin : begin + rows * ROW_BYTES].reshape(rows, ROW_BYTES)
        tags = {self.memory[page] for page in self._pages.get(action.model, ())}
        tag = tags.pop() if len(tags) == 1 else b"\xff" * TAG_BYTES
        found[:, ROW_BYTES:] = np.frombuffer(tag, np.uint8)
        return 1

    def close(self) -> None:
        """Nothing is kept."""

    def _raise_if_lost(self) -> None:
        if self.lost:
            raise DeviceLost("the device has fallen off the bus")
