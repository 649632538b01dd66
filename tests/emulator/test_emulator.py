"""Right kernels on the emulated device: what they compute is what the same computation gives in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.plan import ADDRESSES, ADDRESSES_AT_ONCE, SET_ADDRESSES
from mainspring.compiler.tvm.kernels import through_addresses
from tests.emulator.build import EmulationError, Program, compile_source, split_source
from tests.emulator.device import Array, Device, Extent, KernelLaunch, Number, Pointer, Words


def launch(
    kernels: Program,
    name: str,
    a: Array,
    out_bytes: int,
    grid: Extent = (1, 1, 1),
    block: Extent = (64, 1, 1),
    *,
    shared_bytes: int = 0,
    workers: int = 1,
) -> Array:
    """Run one kernel of two pointers; return its output as ``a``'s type."""
    device = Device(kernels, workers)
    device.give("a", a)
    device.make("out", out_bytes)
    arguments = (Pointer("a", 0, a.nbytes), Pointer("out", 0, out_bytes, writes=True))
    made = device.run([KernelLaunch(name, grid, block, arguments, shared_bytes)])
    return made["out"].view(a.dtype)


def values(count: int) -> np.ndarray:
    return np.random.default_rng(count).uniform(-4, 4, count).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_reverse_their_elements_through_shared_memory(kernels: Program, workers: int) -> None:
    a = values(64 * 7)
    found = launch(kernels, "reverse", a, a.nbytes, (7, 1, 1), workers=workers)
    np.testing.assert_array_equal(found.reshape(7, 64), a.reshape(7, 64)[:, ::-1])


def test_rounds_between_barriers_see_each_others_values(kernels: Program) -> None:
    a = values(192)
    found = launch(kernels, "rounds", a, 256)
    np.testing.assert_allclose(found, a.reshape(3, 64)[:, ::-1].sum(axis=0), rtol=1e-6)


def test_dynamic_shared_memory_is_as_large_as_its_launch_says(kernels: Program) -> None:
    a = values(64)
    np.testing.assert_array_equal(launch(kernels, "dynamic", a, 256, shared_bytes=256), a[::-1])
    with pytest.raises(EmulationError, match=r"out of bounds: .* of 128 of dynamic shared memory"):
        launch(kernels, "dynamic", a, 256, shared_bytes=128)


def test_vectors_and_functions_compute_what_numpy_does(kernels: Program) -> None:
    a = values(256)
    x, y, z, w = a.reshape(64, 4).T
    expected = np.stack([x + y, z + w, np.maximum(x, w), np.minimum(y, z)], axis=1)
    np.testing.assert_array_equal(launch(kernels, "vectors", a, 1024).reshape(64, 4), expected)
    a = a[:64]
    erf, e = np.array([math.erf(each) for each in a]), np.exp(a)
    up = a + 5
    expected = np.stack(
        [
            e / (1 + e),
            1 / np.sqrt(up) + np.sqrt(up) + a / 2,
            erf + np.tanh(a) + up**1.5 + a * a + 1,
            np.log(up) + np.floor(a) + np.maximum(a, 0.25) + np.minimum(a, -0.25),
        ],
        axis=1,
    )
    np.testing.assert_allclose(
        launch(kernels, "functions", a, 1024).reshape(64, 4), expected, rtol=1e-5, atol=1e-5
    )


def test_halves_are_16_bits_wide(kernels: Program) -> None:
    a = values(64).astype(np.float16)
    found = launch(kernels, "halves", a, 128)
    np.testing.assert_array_equal(found, (a * np.float16(2)).reshape(32, 2)[:, ::-1].reshape(-1))


def test_a_nan_outlives_a_comparison(kernels: Program) -> None:
    a = values(64)
    a[[3, 40]] = np.nan
    found = launch(kernels, "largest", a, 256)
    assert np.flatnonzero(np.isnan(found)).tolist() == [3, 40]


def test_lanes_exchange_values(kernels: Program) -> None:
    a = values(64)
    found = launch(kernels, "shuffles", a, 1024).reshape(2, 32, 4)
    for warp, lanes in zip(found, a.reshape(2, 32), strict=True):
        lane = np.arange(32)
        np.testing.assert_allclose(warp[:, 0], lanes.sum(), rtol=1e-5)
        np.testing.assert_array_equal(warp[:, 1], lanes.min())
        np.testing.assert_array_equal(warp[:, 2], lanes[np.maximum(lane - 1, 0)])
        np.testing.assert_array_equal(warp[:, 3], lanes[np.where(lane % 8 == 7, lane, lane + 1)])


def test_a_warp_needs_no_barrier_of_the_block(kernels: Program) -> None:
    a = values(64)
    np.testing.assert_array_equal(launch(kernels, "within_warps", a, 256), a + 1)


def test_copies_in_the_background_arrive_with_the_wait_for_their_group(kernels: Program) -> None:
    a = values(64)
    found = launch(kernels, "copied", a, 256, block=(16, 1, 1))
    expected = np.where(np.arange(64) < 56, a, 0).reshape(4, 16)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(found, expected)


def test_atomics_of_all_threads_add_up(kernels: Program) -> None:
    a = np.random.default_rng(1).integers(0, 4, 64).astype(np.int32)
    found = launch(kernels, "histogram", a, 32)
    assert found[:4].tolist() == [int((a == value).sum()) for value in range(4)]
    assert found[4:].tolist() == [int(np.flatnonzero(a == value).max()) for value in range(4)]


def test_every_thread_of_every_block_has_its_place(kernels: Program) -> None:
    device = Device(kernels, 2)
    size = 3 * 2 * 2 * 24 * 4
    device.make("out", size)
    output = Pointer("out", 0, size, writes=True)
    made = device.run([KernelLaunch("places", (3, 2, 2), (4, 3, 2), (output,))])
    found = made["out"].view(np.int32).reshape(2, 2, 3, 2, 3, 4)
    digits = np.meshgrid(*map(np.arange, found.shape), indexing="ij")
    weights = (100_000, 10_000, 1000, 100, 10, 1)
    expected = sum(weight * digit for weight, digit in zip(weights, digits, strict=True))
    np.testing.assert_array_equal(found, expected)


def test_launches_follow_each_other_and_take_numbers(kernels: Program) -> None:
    """``scale`` runs twice through a workspace, in which the second tensor lies where the first one was."""
    a = values(100)
    device = Device(kernels, 2)
    device.give("a", a)
    device.make("workspace", 1024)
    device.make("out", 280)

    def scale(source: Pointer, target: Pointer, first: int, count: int, factor: float) -> KernelLaunch:
        numbers = (Number(first), Number(count), Number(factor, "float32"))
        return KernelLaunch("scale", (2, 1, 1), (64, 1, 1), (source, target, *numbers))

    whole, part = Pointer("workspace", 0, 400), Pointer("workspace", 512, 360)
    moved = Pointer("workspace", 0, 320)
    steps: list[Callable[[], KernelLaunch]] = [
        lambda: scale(Pointer("a", 0, 400), written(whole), 0, 100, 2.0),
        lambda: scale(whole, written(part), 10, 90, 0.5),
        lambda: scale(part, written(moved), 10, 80, 3.0),
        lambda: scale(moved, Pointer("out", 0, 280, writes=True), 10, 70, 1.0),
    ]
    made = device.run([step() for step in steps])
    np.testing.assert_allclose(made["out"].view(np.float32), a[30:] * 3, rtol=1e-6)


def written(pointer: Pointer) -> Pointer:
    return Pointer(pointer.region, pointer.offset, pointer.size_bytes, writes=True)


SCALE = """\
extern "C" __global__ void __launch_bounds__(64) scale(float* __restrict__ y, const float* x, float f) {
  y[threadIdx.x] = x[threadIdx.x] * f;
}
"""


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compile_source(through_addresses(SCALE), tmp_path_factory.mktemp("placed"))


def scaled(program: Program, x: Array, by: float) -> Array:
    device = Device(program)
    device.give("x", x)
    device.make("half", 256)
    device.make("y", 256)
    given, half = Pointer("x", 0, 256), Pointer("half", 0, 256)
    made = device.run(
        [
            KernelLaunch("scale", (1, 1, 1), (64, 1, 1), (target, source, Number(by, "float32")))
            for target, source in ((written(half), given), (Pointer("y", 0, 256, writes=True), half))
        ]
    )
    return made["y"].view(np.float32)


def test_kernels_of_places_find_their_arrays_through_the_table(placed: Program) -> None:
    assert placed.kernels["scale"].placed
    x = values(64)
    np.testing.assert_allclose(scaled(placed, x, 2.0), 4 * x, rtol=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("place >> 48", "(place >> 48) ^ 1", "it reads byte .* of argument 0 .*, which nobody wrote"),
        ("+ offset", "+ offset + 4", "out of bounds: it .* argument"),
        (
            "  y[threadIdx.x]",
            f"  ((float*){ADDRESSES})[0] = 1.0f;\n  y[threadIdx.x]",
            "out of bounds: it writes",
        ),
    ],
)
def test_wrong_uses_of_the_table_are_found(before: str, after: str, found: str, tmp_path: Path) -> None:
    source = through_addresses(SCALE)
    assert before in source
    program = compile_source(source.replace(before, after), tmp_path)
    with pytest.raises(EmulationError, match=found):
        scaled(program, values(64), 2.0)


def test_the_table_is_written_as_its_kernel_is_told(placed: Program) -> None:
    given = tuple(3**number for number in range(ADDRESSES_AT_ONCE - 24)) + (2**64 - 1,) * 24
    device = Device(placed)
    device.make("table", 8 * ADDRESSES_AT_ONCE)
    target = Pointer("table", 0, 8 * ADDRESSES_AT_ONCE, writes=True)
    launches = [KernelLaunch(SET_ADDRESSES, (1, 1, 1), (ADDRESSES_AT_ONCE, 1, 1), (target, Words(given)))]
    assert device.run(launches)["table"].view(np.uint64).tolist() == [*given]


def test_source_is_split_into_its_kernels() -> None:
    source = (Path(__file__).parent / "kernels.cu").read_text()
    before, found = split_source(source)
    assert "#include <cuda.h>" in before
    assert "__global__" not in before
    by_name = {kernel.name: kernel for kernel in found}
    assert len(by_name) == len(found) == source.count("__global__ void")
    assert by_name["scale"].parameters == 5
    assert by_name["places"].parameters == 1
    assert by_name["scale"].most_threads == 64
    lines = source.splitlines()
    for kernel in found:
        assert lines[kernel.line - 1] == kernel.text.splitlines()[0]


def test_prototypes_before_the_definitions_are_no_kernels() -> None:
    kernel = 'extern "C" __global__ void f(float* __restrict__ a)'
    before, found = split_source(f"int x;\n{kernel};\n{kernel} {{\n}}\n")
    assert (before, len(found), found[0].line, found[0].most_threads) == ("int x;\n", 1, 3, 0)


def test_source_without_kernels_or_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="no kernel: no line begins with"):
        split_source("void f() {}\n")
    wrong = 'extern "C" __global__ void f(float* __restrict__ a) {\n  a[0] = b;\n}\n'
    with pytest.raises(EmulationError, match=r"refuses the source: .*kernels.cu:2.*'b' was not declared"):
        compile_source(wrong, tmp_path)
