"""Launch plans: what they hold survives the file, and what no device could do is found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import GraphTensor, IoTensor
from mainspring.compiler.artifact.plan import (
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    ENTRY_SHIFT,
    Launch,
    LaunchPlan,
    Operand,
    Plans,
    arch_number,
    place,
    read_plans,
)
from mainspring.messages.model import OpenDim, Term
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.tiny_store import tiny_store

WEIGHTS = (GraphTensor("w0", "float32", (4, 3)),)
INPUTS = (IoTensor("i0", "float32", (4,)),)
OUTPUTS = (IoTensor("o0", "float32", (3,)),)

READS = Operand("input", 0, 0, 32, "float32", (2, 4))
WEIGHT = Operand("weights", 0, 0, 48, "float32", (4, 3))
MIDDLE = Operand("workspace", 0, 256, 24, "float32", (2, 3))
WRITES = Operand("output", 0, 0, 24, "float32", (2, 3), writes=True)


def changed(operand: Operand, **changes: Any) -> Operand:
    return msgspec.structs.replace(operand, **changes)


def launch(*arguments: Operand | float, **changes: Any) -> Launch:
    made = Launch("matmul_kernel", arguments, grid=(3, 1, 1), block=(32, 1, 1))
    return msgspec.structs.replace(made, **changes)


def plans(*launches: Launch, sizes: tuple[int, ...] = (2,), workspace_bytes: int = 512) -> Plans:
    each = tuple(LaunchPlan(size, workspace_bytes, launches) for size in sizes)
    return Plans("cuda", "sm_90", "0.27.0", {"kernels.cu": "0" * 64}, each)


def test_a_sound_plan_has_no_problems_and_survives_its_file() -> None:
    whole = plans(
        launch(READS, WEIGHT, changed(MIDDLE, writes=True)),
        launch(MIDDLE, WRITES, 3, 0.5, shared_bytes=1024),
    )
    assert whole.problems(WEIGHTS, INPUTS, OUTPUTS) == []
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Plans) == whole
    assert whole.plan(2).launches[1].operands == (MIDDLE, WRITES)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (launch(changed(READS, offset=4)), r"bytes 4 to 36 of input 0, which has 32"),
        (launch(changed(READS, index=1)), r"input 1 is none of 1"),
        (launch(changed(READS, shape=(2, 5))), r"32 bytes are not float32\[2, 5\]"),
        (launch(changed(MIDDLE, offset=64)), r"workspace offset 64 is not a multiple of 256"),
        (launch(changed(MIDDLE, offset=512)), r"bytes 512 to 536 of workspace 0"),
        (launch(changed(WEIGHT, writes=True)), r"it writes weights 0"),
        (launch(MIDDLE, changed(MIDDLE, writes=True)), r"is also another operand"),
        (launch(READS, grid=(0, 1, 1)), r"grid \(0, 1, 1\)"),
        (launch(READS, grid=(1, 70000, 1)), r"grid \(1, 70000, 1\)"),
        (launch(READS, block=(64, 32, 1)), r"block \(64, 32, 1\)"),
        (launch(READS, shared_bytes=-1), r"-1 bytes of shared memory"),
    ],
)
def test_what_no_device_could_do_is_found(wrong: Launch, complaint: str) -> None:
    (problem,) = plans(wrong).problems(WEIGHTS, INPUTS, OUTPUTS)
    assert problem.startswith("batch size 2, launch 0 (matmul_kernel): ")
    assert re.search(complaint, problem), problem


@pytest.mark.parametrize("sizes", [(), (2, 1), (2, 2), (0, 2)])
def test_batch_sizes_that_can_not_be_are_found(sizes: tuple[int, ...]) -> None:
    (problem,) = plans(sizes=sizes).problems(WEIGHTS, INPUTS, OUTPUTS)
    known = ", ".join(f"batch size {size}" for size in sizes) or "none"
    assert problem == f"its plans' shapes ({known}) are not ascending batch sizes from 1 on"


def test_plans_are_found_by_batch_size() -> None:
    several = plans(sizes=(1, 4))
    assert several.plan(4).batch_size == 4
    assert several.workspace_bytes == 512
    with pytest.raises(
        KeyError, match="no plan of batch size 2; there are plans of batch size 1, batch size 4"
    ):
        several.plan(2)


def test_plans_of_buckets_are_found_by_their_ceilings_and_checked_at_these() -> None:
    opened = IoTensor("i0", "float32", (8,), (OpenDim(0, (Term(0),)),))
    inputs, outputs = (opened,), (msgspec.structs.replace(opened, name="o0"),)
    reads = [Operand("input", 0, 0, 4 * 2 * size, "float32", (2, size)) for size in (4, 8)]
    writes = [msgspec.structs.replace(each, region="output", writes=True) for each in reads]
    each = [
        LaunchPlan(2, workspace, (launch(read, write),), (size,))
        for read, write, size, workspace in zip(reads, writes, (4, 8), (256, 768), strict=True)
    ]
    whole = Plans("cuda", "sm_90", "0.27.0", {}, tuple(each))
    assert whole.problems((), inputs, outputs) == []
    assert [whole.plan(2, (size,)) for size in (4, 8)] == each
    assert whole.workspace_bytes == 768
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Plans) == whole
    with pytest.raises(KeyError, match="no plan of batch size 2 at 5; there are plans of batch size 2 at 4"):
        whole.plan(2, (5,))
    smaller = msgspec.structs.replace(whole, plans=(msgspec.structs.replace(each[1], sizes=(4,)),))
    assert len(smaller.problems((), inputs, outputs)) == 2, (
        "operands of another bucket are beyond its tensors"
    )


def test_a_plan_without_sizes_is_written_as_before() -> None:
    """So that executables that are compiled again keep their names."""
    assert b"sizes" not in msgspec.json.encode(plans(launch(READS)))


@pytest.mark.parametrize("version", [1, 3])
def test_plans_of_another_version_have_to_be_compiled_again(version: int, tmp_path: Path) -> None:
    store = tiny_store(tmp_path, "a", msgspec.structs.replace(tiny.PLANS, format=version))
    with pytest.raises(
        StoreError,
        match=rf"plans of format {version} and this version runs format 2; `mainspring compile .* again",
    ):
        read_plans(store, store.manifest("a"))


def test_a_place_is_an_entry_of_the_table_and_the_bytes_from_its_address() -> None:
    assert divmod(place(ADDRESSES_COUNT - 1, 5), 1 << ENTRY_SHIFT) == (ADDRESSES_COUNT - 1, 5)
    assert place(ADDRESSES_COUNT - 1, 5) < 1 << 64
    assert 8 * ADDRESSES_COUNT <= 64 << 10, "more than a device's constant memory"
    assert ADDRESSES_COUNT % ADDRESSES_AT_ONCE == 0, "the last launch would write beyond the table"


@pytest.mark.parametrize(
    ("arch", "number"),
    [("sm_90", 90), ("sm_90a", 90), ("sm_120f", 120), ("compute_80", 80), ("h100", 0), ("", 0)],
)
def test_an_architecture_has_a_number(arch: str, number: int) -> None:
    assert arch_number(arch) == number
