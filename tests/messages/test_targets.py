"""Which artifact a worker runs, and which artifacts are of one model."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.targets import (
    built_for,
    cannot_run,
    check_targets,
    device_kind_of,
    each_build,
    kind_of,
    kinds_build,
    merged,
    targets_of,
)

GPU = ModelSpec(
    name="m",
    weights_hash="gpu weights",
    executable="gpu graph",
    batch_sizes=(1, 2, 4),
    weights_bytes=1,
    extents=(1,),
    inputs=(TensorSpec("x", "float32", (4,)),),
    outputs=(TensorSpec("y", "float32", (4,)),),
    profiles={"gpu": Profile({1: 5, 2: 6, 4: 7}, 1)},
    target="tvm-sm_90",
)
CPU = msgspec.structs.replace(
    GPU,
    name="m@tvm-x86_64-avx2",
    stored_as="m@tvm-x86_64-avx2",
    weights_hash="cpu weights",
    executable="cpu graph",
    batch_sizes=(1, 4, 8),
    extents=(2,),
    profiles={"cpu": Profile({1: 50, 4: 60}, 1)},
    target="tvm-x86_64-avx2",
)
BOTH = merged(GPU, CPU)


def test_a_worker_runs_the_first_of_its_targets_that_the_model_has() -> None:
    assert built_for(BOTH, ("tvm-sm_90a", "tvm-sm_90")).executable == "gpu graph"
    cpu = built_for(BOTH, ("onnxruntime-x86_64-avx512f", "tvm-x86_64-avx2", "tvm-sm_90"))
    assert (cpu.name, cpu.stored_name, cpu.executable) == ("m", "m@tvm-x86_64-avx2", "cpu graph")
    assert (cpu.extents, cpu.batch_sizes, cpu.profiles) == ((2,), (1, 4), CPU.profiles)
    assert built_for(BOTH, ("tvm-sm_80", "tvm-sm_*")).executable == "gpu graph"


def test_where_nothing_fits_the_model_stays_and_why_is_said() -> None:
    left = built_for(BOTH, ("onnxruntime-cuda",))
    assert left is BOTH
    why = cannot_run(left, ("onnxruntime-cuda",))
    assert "compiled for tvm-sm_90, tvm-x86_64-avx2, and this worker runs onnxruntime-cuda" in why
    assert not cannot_run(BOTH, ())
    assert not cannot_run(msgspec.structs.replace(GPU, target=""), ("onnxruntime-cuda",))


def test_to_take_one_artifact_after_the_other_loses_none() -> None:
    again = built_for(built_for(BOTH, ("tvm-x86_64-avx2",)), ("tvm-sm_90",))
    assert targets_of(again) == targets_of(BOTH)
    assert [each.artifact for each in each_build(again)] == [each.artifact for each in each_build(BOTH)]


def test_a_kinds_name_says_which_artifact_it_runs() -> None:
    kind = kind_of("fast", ("tvm-x86_64-avx2", "tvm-x86_64-baseline"))
    assert kinds_build(kind, BOTH).executable == "cpu graph"
    assert device_kind_of(kind) == "fast"
    assert kind_of("fast", ()) == "fast"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outputs": ()}, "differ in outputs"),
        ({"whole": True}, "differ in whole"),
        ({"batch_sizes": (3,)}, "no batch size in common"),
        ({"target": "tvm-sm_90"}, "two artifacts for tvm-sm_90"),
        ({"target": ""}, "does not say which hosts"),
    ],
)
def test_what_differs_is_named(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        merged(GPU, msgspec.structs.replace(CPU, **changes))


def test_targets_have_a_form_and_a_number() -> None:
    check_targets(("tvm-sm_90a", "tvm-sm_*", "onnxruntime-cuda", "onnxruntime-x86_64-avx512f"))
    for wrong in ("", "sm_90", "tvm", "tvm-", "tvm-a/b", "tvm-A", "*"):
        with pytest.raises(ValueError, match="is not a target"):
            check_targets((wrong,))
    with pytest.raises(ValueError, match="at most 16"):
        check_targets(("tvm-sm_90",) * 17)


def test_logs_of_before_are_read() -> None:
    old = msgspec.to_builtins(GPU, str_keys=True)
    for field in ("target", "stored_as", "others"):
        del old[field]
    read = msgspec.convert(old, ModelSpec, strict=False)
    assert (read.target, read.others, read.stored_name) == ("", (), "m")
