"""Models with open dimensions on a GPU worker, with the kernels of each bucket, and without a GPU.

As in ``test_generated_kernels``; unlike requests are padded and cut as a worker's network thread does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mainspring.compiler.artifact.manifest import CUDA, TVM, Manifest
from mainspring.compiler.artifact.plan import read_plans, shapes_of
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import PreparedModel
from mainspring.worker.engines.cuda.engine import CudaEngine
from mainspring.worker.inputs import HeldInput, Inputs
from tests.compiler import open_models
from tests.emulator.build import why_not
from tests.worker.engines.cuda.test_generated_kernels import EmulatedKernels
from tests.worker.peers import infer, load

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here"),
]

CASES: dict[str, tuple[Any, dict[str, int], dict[str, float]]] = {
    "encoder": (open_models.encoder(layers=1, width=16, heads=2), {"seq": 24}, {"ids": 0.0, "mask": 0.0}),
    "sounds": (open_models.sounds(), {"time": 40}, {"x": 0.0}),
}
BATCH_SIZES = (1, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each case, and ``store`` with all of them, compiled as far as the kernels' source."""
    from mainspring.compiler.pipeline import compile_file
    from mainspring.compiler.program.compiled import Target
    from mainspring.compiler.tvm import build as tvm_build

    path = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tvm_build, "compiled_kernels", lambda *_: None)
        for name, (model, most, pad) in CASES.items():
            file, store = open_models.save(model, path / f"{name}.onnx"), Store(path / "store")
            compile_file(file, name, store, BATCH_SIZES, most=most, pad=pad, target=Target(TVM, CUDA))
    return path


class _Bench:
    """A GPU worker's engine on the fake device, and what brings requests to it."""

    def __init__(self, store: Store, manifest: Manifest, folder: Path) -> None:
        kernels = EmulatedKernels(store, manifest, folder / "kernels")
        self.driver = FakeDriver(256 * MIB, kernels.all())
        config = WorkerConfig(
            name="w", engine="auto", device="cuda:0", store=str(store.root), pages=2, io_bytes=MIB,
            workspace_bytes=8 * MIB, reserve_bytes=0,
        )  # fmt: skip
        self.spec = manifest.spec()
        self.engine = CudaEngine(config, self.driver, folder / "agreed")
        self.engine.prepare(self.spec)
        self.engine.load(load(1, (1,), manifest.name))
        self._inputs = Inputs(self.engine.io, 8, MIB, 10**9, self.engine.transfers)
        self._prepared = PreparedModel(self.spec, PAGE_BYTES)
        self._actions = 10

    def answers(
        self, requests: list[dict[str, np.ndarray]], sizes: list[tuple[int, ...]], batch_size: int
    ) -> list[list[bytes]]:
        """Return the outputs of one batch of these requests of a row each."""
        self._actions += 1
        ids, ceilings = tuple(range(len(requests))), self.spec.bucket_of(sizes[0])
        action = infer(
            *(self._actions, ids, (1,) * len(ids)), batch_size=batch_size, model=self.spec.name,
            sizes=ceilings, request_sizes=tuple(sizes),
        )  # fmt: skip
        assert self._prepared.infer_fault(action) is None
        layout, size = self._prepared.place(action)
        io = Reservation(Slot(4096 * (self._actions % 3), size), layout)
        self._inputs.open(action, self.spec, io)
        for number, arrays in enumerate(requests):
            held = HeldInput(b"gateway", [array.data.cast("B") for array in arrays.values()], 0, 0)
            assert self._inputs.place(action.action_id, number, held) == ""
        assert self.engine.give(action, io).wait().device_ns > 0
        assert self._inputs.received(io) == ""
        found = {
            number: list(map(bytes, frames)) for number, _, frames in self._inputs.outputs(action.action_id)
        }
        self._inputs.close(action.action_id)
        return [found[number] for number in ids]


@pytest.fixture(params=CASES)
def bench(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[_Bench]:
    store = Store(folder / "store")
    made = _Bench(store, store.manifest(request.param), tmp_path)
    yield made
    made.engine.close()
    assert not made.driver.leaks


def drawn(bench: _Bench, size: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    if bench.spec.name == "sounds":
        return {"x": random.standard_normal((1, 3, size), np.float32)}
    mask = random.integers(0, 2, (1, size))
    mask[:, 0] = 1
    return {"ids": random.integers(0, 40, (1, size)), "mask": mask}


def test_unlike_requests_of_a_batch_are_answered_as_alone(bench: _Bench, folder: Path) -> None:
    store = Store(folder / "store")
    manifest = store.manifest(bench.spec.name)
    plans = read_plans(store, manifest)
    assert plans.target == CUDA
    assert [plan.shape for plan in plans.plans] == shapes_of(manifest)
    assert bench.driver.calls.count("instantiate") == len(plans.plans), (
        "a graph for each bucket and batch size"
    )
    stock = onnxruntime.InferenceSession(folder / f"{bench.spec.name}.onnx")
    (symbol,) = bench.spec.symbols
    for ceiling, below in zip(symbol.ceilings, (0, *symbol.ceilings), strict=False):
        for sizes in ([below + 1, ceiling, below + 5], [ceiling - 3]):
            requests = [drawn(bench, size, ceiling + size) for size in sizes]
            found = bench.answers(requests, [(size,) for size in sizes], BATCH_SIZES[len(sizes) > 1])
            for arrays, (frame,) in zip(requests, found, strict=True):
                (wanted,) = stock.run(None, arrays)
                outputs = np.frombuffer(frame, wanted.dtype).reshape(wanted.shape)
                np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)


def test_strangers_change_no_bit_of_an_answer(bench: _Bench) -> None:
    (_, ceiling, *_) = bench.spec.symbols[0].ceilings
    mine = drawn(bench, ceiling - 5, 1)
    answers = []
    for turn, other in enumerate((ceiling, ceiling - 5, ceiling - 1)):
        strange = drawn(bench, other, 10 + turn)
        if "x" in strange:
            strange["x"][:] = (1, np.inf, np.nan)[turn]
        answers.append(bench.answers([mine, strange], [(ceiling - 5,), (other,)], 3)[0])
    assert answers.count(answers[0]) == len(answers)
