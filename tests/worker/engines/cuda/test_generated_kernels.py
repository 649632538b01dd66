"""From an ONNX file to a GPU worker's answers, with the kernels that TVM generates, and without a GPU.

The compiler's artifact is opened, loaded and run by the worker's engine on the fake device; whenever that
runs a kernel, the emulator runs its generated source on the bytes at the addresses that the launch was given.
So plans, files, pages, operands, graphs and copies have to agree with each other, or outputs are not ONNX
Runtime's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.compiler.artifact.manifest import CUDA, TVM, Manifest
from mainspring.compiler.artifact.plan import SOURCE, Launch, Operand, kernels_path, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.reference import Prepared
from mainspring.compiler.zoo.catalogue import build
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engines.cuda.engine import CudaEngine
from tests.emulator.build import compile_source, why_not
from tests.emulator.device import Device, KernelLaunch, Pointer
from tests.worker.peers import infer, load

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here"),
]

ARCHITECTURE = "digits"
COPIES = ("digits-1", "digits-2")
SIZES = (1, 2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two copies of the zoo's smallest convolutional network, compiled for a GPU as far as its source."""
    from mainspring.compiler.program.compiled import Target
    from mainspring.compiler.tvm import build as tvm_build
    from mainspring.compiler.zoo.catalogue import compile_zoo

    made = Store(tmp_path_factory.mktemp("gpu") / "store")
    with pytest.MonkeyPatch.context() as patch:
        # NVIDIA's compiler would take a minute, and there may be none.
        patch.setattr(tvm_build, "compiled_kernels", lambda *_: None)
        first, second = compile_zoo([ARCHITECTURE], made, len(COPIES), 0, SIZES, Target(TVM, CUDA))
    assert first.manifest.executable == second.manifest.executable
    return made


class EmulatedKernels:
    """The generated kernels of a model as the fake device wants them."""

    def __init__(self, store: Store, manifest: Manifest, folder: Path) -> None:
        plans = read_plans(store, manifest)
        path = kernels_path(store, manifest, plans, SOURCE)
        assert path is not None
        self.launches = {launch.kernel: launch for plan in plans.plans for launch in plan.launches}
        self.program = compile_source(path.read_text(), folder, set(self.launches))
        self.ran: list[str] = []

    def all(self) -> dict[str, Kernel]:
        return {
            name: Kernel(functools.partial(self.run, launch), parameters=len(launch.arguments), placed=True)
            for name, launch in self.launches.items()
        }

    def run(self, launch: Launch, *addresses: int) -> None:
        """Run a kernel on what is at these addresses; operands of a kernel are as long at all launches."""
        device = Device(self.program)
        operands: list[tuple[str, int, Operand]] = []
        for position, (operand, address) in enumerate(zip(launch.arguments, addresses, strict=True)):
            assert isinstance(operand, Operand), "a number among the arguments: give the emulator its dtype"
            operands.append((f"argument{position}", address, operand))
        for name, address, operand in operands:
            if operand.writes:
                device.make(name, operand.size_bytes)
            else:
                device.give(name, np.frombuffer(ctypes.string_at(address, operand.size_bytes), np.uint8))
        pointers = tuple(Pointer(name, 0, each.size_bytes, each.writes) for name, _, each in operands)
        made = device.run(
            [KernelLaunch(launch.kernel, launch.grid, launch.block, pointers, launch.shared_bytes)]
        )
        for name, address, operand in operands:
            if operand.writes:
                ctypes.memmove(address, made[name].ctypes.data, operand.size_bytes)
        self.ran.append(launch.kernel)


def begin(
    engine: CudaEngine, spec: ModelSpec, prepared: Prepared, size: int, offset: int = 0
) -> Callable[[], None]:
    """Give a batch of a resident model; what is returned awaits its outputs, which are ONNX Runtime's."""
    rows = [array[:size] for array in prepared.rows]
    layout = slot_layout(spec, size)
    io = Reservation(Slot(offset, layout.size), layout)
    for start, array in zip(layout.inputs, rows, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        engine.io[io.slot.offset + start : io.slot.offset + start + flat.size] = flat
        engine.transfers.send(io, start, flat.size)
    run = engine.give(infer(1, tuple(range(size)), model=spec.name), io)

    def end() -> None:
        assert run.wait().device_ns > 0
        assert engine.transfers.receive(io) == ""
        expected: list[Any] = list(prepared.reference.run(rows))
        for start, wanted in zip(layout.outputs, expected, strict=True):
            first = io.slot.offset + start
            found = engine.io[first : first + wanted.nbytes].view(wanted.dtype).reshape(wanted.shape)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)

    return end


def test_a_worker_answers_as_onnx_runtime_does_wherever_models_move(store: Store, tmp_path: Path) -> None:
    manifests = {name: store.manifest(name) for name in COPIES}
    manifest = manifests[COPIES[0]]
    kernels = EmulatedKernels(store, manifest, tmp_path / "kernels")
    driver = FakeDriver(512 * MIB, kernels.all())
    config = WorkerConfig(
        name="w", engine="auto", device="cuda:0", store=str(store.root), pages=3 * manifest.pages,
        io_bytes=8 * MIB, workspace_bytes=64 * MIB, reserve_bytes=0,
    )  # fmt: skip
    engine = CudaEngine(config, driver, tmp_path / "agreed")
    prepared = {name: Prepared(build(ARCHITECTURE, seed), max(SIZES)) for seed, name in enumerate(COPIES)}
    for each in manifests.values():
        engine.prepare(each.spec())
    assert not kernels.ran, "PREPARE launched kernels beside serving"
    assert driver.calls.count("instantiate") == len(SIZES), "one graph for each batch size of all copies"

    first, second = COPIES
    moves = [{first: 1, second: 2}, {second: 1, first: 0}]
    for places in moves:
        for name, place in places.items():
            engine.unload(name)
            pages = range(place * manifest.pages, (place + 1) * manifest.pages)
            engine.load(load(1, tuple(pages), name))
        for size in SIZES:
            for name in places:
                begin(engine, manifests[name].spec(), prepared[name], size, 4096 * size)()
    # The device has a batch of each model at once.
    ends = [
        begin(engine, manifests[name].spec(), prepared[name], size, offset)
        for name, size, offset in ((first, SIZES[0], 0), (second, SIZES[-1], 4 * MIB))
    ]
    ran = len(kernels.ran)
    for end in ends:
        end()
    plans = read_plans(store, manifest)
    assert len(kernels.ran) - ran == sum(len(plans.plan(size).launches) for size in (SIZES[0], SIZES[-1]))
    assert driver.calls.count("instantiate") == len(SIZES)
    launches = sum(len(plan.launches) for plan in plans.plans)
    assert ran == len(moves) * len(COPIES) * launches
    engine.close()
    assert not driver.leaks
