"""Wrong kernels and wrong launches: each is found, and what is said of it names the place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.build import EmulationError, Program
from tests.emulator.device import Device, KernelLaunch, Number, Pointer
from tests.emulator.test_emulator import launch, values, written

A, OUT = Pointer("a", 0, 256), Pointer("out", 0, 256)
LINES = (Path(__file__).parent / "kernels.cu").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "reverse_without_barrier",
            r"it reads byte \d+ of shared memory, which no thread of its block wrote",
        ),
        ("rounds_with_one_barrier", r"race: it \w+ byte \d+ of shared memory, which thread \d+ of the block"),
        ("barrier_for_some", "deadlock: it waits at the barrier of line .*, thread 0 at that of line"),
        ("write_beyond", "out of bounds: it writes 4 bytes at byte 256 of argument 1, which has 256"),
        ("write_what_is_read", "it writes to argument 0, which its plan says is only read"),
        ("shared_beyond", r"out of bounds: it reads 4 bytes beside the 256 of shared memory"),
        ("shared_nobody_wrote", "it reads byte 252 of shared memory, which no thread of its block wrote"),
        ("read_own_output", r"it reads byte \d+ of argument 1 \(out byte \d+\), which nobody wrote"),
        (
            "everyone_writes_one",
            r"race: it writes byte 0 of argument 1, which thread \d+ of block 0 wrote in",
        ),
        ("misaligned", "misaligned: it reads 8 bytes"),
        (
            "shuffle_for_some",
            "deadlock: it waits at line .* for lanes ffffffff of its warp, of which ffffffdf came",
        ),
        ("between_warps", r"which no thread of its block wrote|race: it reads byte \d+ of shared memory"),
        ("through_a_number", "out of bounds: it reads 4 bytes beside"),
        (
            "copied_without_wait",
            r"race: it reads byte \d+ of shared memory, to which a copy of thread \d+ is",
        ),
        ("copied_with_too_short_a_wait", r"to which a copy of thread \d+ is under way"),
        ("copied_without_commit", r"to which a copy of thread \d+ is under way"),
        (
            "copied_without_barrier",
            r"it reads byte \d+ of shared memory, which no thread of its block wrote|race",
        ),
        (
            "copied_over_what_is_read",
            r"race: it \w+ byte \d+ of shared memory, which .* since the last barrier",
        ),
        ("copies_left", "it ends with 1 copies that it did not wait for"),
        ("copied_misaligned", "misaligned: it reads 16 bytes"),
        ("copied_beyond", "out of bounds: it reads 4 bytes at byte 1020 of argument 0, which has 768"),
        ("too_much_shared", "declares 65536 bytes of shared memory; a block has 49152"),
    ],
)
def test_wrong_kernel_is_found(kernels: Program, name: str, message: str) -> None:
    out_bytes = 512 if name == "misaligned" else 256
    with pytest.raises(EmulationError, match=message) as found:
        launch(kernels, name, values(192), out_bytes)
    if "launch 0" in str(found.value):
        assert f"launch 0 ({name}), block (0, 0, 0), thread (" in str(found.value)


def test_wrong_access_is_found_with_its_line(kernels: Program) -> None:
    with pytest.raises(EmulationError, match=r"\[kernels.cu line (\d+)\]") as found:
        launch(kernels, "write_beyond", values(64), 256)
    line = int(str(found.value).rsplit(" ", 1)[1].rstrip("]"))
    assert LINES[line - 1].strip() == "out[threadIdx.x + 1] = a[threadIdx.x];"


@pytest.mark.parametrize(
    ("lower", "message"),
    [
        (1, r"race: it writes byte \d+ .* which thread \d+ of the block read since the last barrier"),
        (0, r"race: it reads byte \d+ .* which thread \d+ of the block wrote since the last barrier"),
    ],
)
def test_races_are_found_in_either_order_of_the_threads(kernels: Program, lower: int, message: str) -> None:
    """Lower threads come first here: once as readers, with the values that were meant, once as writers."""
    device = Device(kernels, 1)
    device.give("a", values(64))
    device.make("out", 256)
    with pytest.raises(EmulationError, match=message):
        device.run([KernelLaunch("half_reads", (1, 1, 1), (64, 1, 1), (A, written(OUT), Number(lower)))])


def test_blocks_of_a_launch_may_not_read_each_others_outputs(kernels: Program) -> None:
    with pytest.raises(
        EmulationError, match=r"race: it reads byte \d+ of argument 1, which thread \d+ of block 0"
    ):
        launch(kernels, "neighbours_output", values(64), 512, (2, 1, 1))


def test_reads_beyond_an_argument_are_found_where_another_tensor_begins(kernels: Program) -> None:
    """Byte 256 of the region belongs to the next tensor, which the same launch may read: not through this."""
    device = Device(kernels, 1)
    device.give("a", values(128))
    device.make("out", 256)
    numbers = (Number(1), Number(64), Number(1.0, "float32"))
    pointers = (Pointer("a", 0, 256), Pointer("out", 0, 256, writes=True))
    with pytest.raises(EmulationError, match="reads 4 bytes at byte 256 of argument 0, which has 256"):
        device.run([KernelLaunch("scale", (1, 1, 1), (64, 1, 1), (*pointers, *numbers))])
    before = (Number(-1), *numbers[1:])
    with pytest.raises(EmulationError, match="reads 4 bytes at byte -4 of argument 0"):
        device.run([KernelLaunch("scale", (1, 1, 1), (64, 1, 1), (*pointers, *before))])


def scale(source: Pointer, target: Pointer, count: int = 64) -> KernelLaunch:
    numbers = (Number(0), Number(count), Number(1.0, "float32"))
    return KernelLaunch("scale", (1, 1, 1), (64, 1, 1), (source, written(target), *numbers))


def workspace_device(kernels: Program) -> Device:
    device = Device(kernels, 1)
    device.give("a", values(64))
    device.make("workspace", 1024)
    device.make("out", 256)
    return device


def test_workspace_that_nobody_wrote_may_not_be_read(kernels: Program) -> None:
    never = Pointer("workspace", 512, 256)
    message = (
        r"launch 1 \(scale\).* it reads byte \d+ of argument 0 \(workspace byte \d+\), which nobody wrote"
    )
    with pytest.raises(EmulationError, match=message):
        workspace_device(kernels).run([scale(A, Pointer("workspace", 0, 256)), scale(never, OUT)])


def test_a_tensor_that_another_one_was_laid_over_may_not_be_read(kernels: Program) -> None:
    first, over = Pointer("workspace", 0, 256), Pointer("workspace", 128, 256)
    message = r"launch 2 \(scale\).* which launch 1 wrote as part of another tensor"
    with pytest.raises(EmulationError, match=message):
        workspace_device(kernels).run([scale(A, first), scale(A, over), scale(first, OUT)])


def test_a_launch_writes_all_that_it_says_it_writes(kernels: Program) -> None:
    with pytest.raises(EmulationError, match=r"launch 0 \(scale\) left byte 240 of argument 1 unwritten"):
        workspace_device(kernels).run([scale(A, OUT, 60)])


def test_what_is_written_may_be_no_other_argument(kernels: Program) -> None:
    whole, half = Pointer("workspace", 0, 256), Pointer("workspace", 128, 256)
    with pytest.raises(EmulationError, match=r"launch 1 .* overlaps another argument"):
        workspace_device(kernels).run([scale(A, whole), scale(whole, half)])


@pytest.mark.parametrize(
    ("launched", "message"),
    [
        (
            KernelLaunch("reverse", (1, 1, 1), (128, 1, 1), (A, written(OUT))),
            "the kernel is bound to 64 threads",
        ),
        (KernelLaunch("reverse", (1, 70_000, 1), (64, 1, 1), (A, written(OUT))), "a grid of .* can't be"),
        (KernelLaunch("reverse", (0, 1, 1), (64, 1, 1), (A, written(OUT))), "a grid of .* can't be"),
        (KernelLaunch("reverse", (1, 1, 1), (64, 1, 1), (A,)), "1 arguments for 2 parameters"),
        (KernelLaunch("nobody", (1, 1, 1), (64, 1, 1), (A,)), "no such kernel"),
        (KernelLaunch("reverse", (1, 1, 1), (64, 1, 1), (A, written(A))), "nothing may write a"),
        (KernelLaunch("reverse", (1, 1, 1), (64, 1, 1), (A, Pointer("out", 4, 256))), "not inside a region"),
        (KernelLaunch("reverse", (1, 1, 1), (64, 1, 1), (A, Pointer("b", 0, 256))), "not inside a region"),
        (
            KernelLaunch("reverse", (1, 1, 1), (64, 1, 1), (A, written(OUT)), 300_000),
            "300000 bytes of dynamic",
        ),
    ],
)
def test_launch_that_no_device_would_take_is_refused(
    kernels: Program, launched: KernelLaunch, message: str
) -> None:
    with pytest.raises(EmulationError, match=message):
        workspace_device(kernels).run([launched])


def test_kernel_that_does_not_end_is_stopped(kernels: Program) -> None:
    device = Device(kernels, 2, limit_s=0.5)
    device.give("a", np.zeros(64, np.float32))
    device.make("out", 256)
    with pytest.raises(EmulationError, match=r"did not end within 0\.5 s"):
        device.run([KernelLaunch("endless", (1, 1, 1), (64, 1, 1), (A, written(OUT)))])
