"""Variants of a function of loops as kernels that can be timed on a GPU."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm_ffi.structural import structural_hash

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.gpu import Gpu
from mainspring.compiler.artifact.plan import PLAN_FORMATS, Launch, LaunchPlan, Operand, Plans
from mainspring.compiler.artifact.trials import Trial
from mainspring.compiler.tuning import Subject
from mainspring.compiler.tvm.assembly import Lifetime, place
from mainspring.compiler.tvm.kernels import Generated, cuda_target, generate_cuda, scratch_of
from mainspring.compiler.tvm.schedules_cuda import candidates, product_of, schedule_cuda
from mainspring.compiler.tvm.tiles import Choice, cycles

REPEATED = 10
"""Launches of a variant between two readings of the GPU's clock, which ticks about once in a short kernel."""

Compile = Callable[[bytes, str], bytes | None]
"""Compiles source for an architecture; None where no compiler is installed."""


def subjects_of(functions: dict[str, Any], gpu: Gpu, compiled: Compile) -> dict[str, Subject]:
    """Return, by the functions' names, those that can be generated in several ways.

    Functions that are equal but for names have one key. ``compiled`` makes machine code.
    """
    found: dict[str, Subject] = {}
    for name, function in functions.items():
        product = product_of(function)
        if product is not None:
            choices = candidates(function, product, gpu)
            key = f"{structural_hash(function, map_free_vars=True):016x} TVM {tvm.__version__}"
            build = functools.partial(trial, function, gpu=gpu, compiled=compiled)
            found[name] = Subject(key, cycles(choices[0], product, gpu), choices, build)
    return found


def trial(function: Any, choices: Sequence[Choice], gpu: Gpu, compiled: Compile) -> Trial:
    """Return a function's variants, compiled; raise `CompileError` if they can't be."""
    names = [f"variant_{number}" for number in range(1, len(choices) + 1)]
    schedule = functools.partial(schedule_cuda, gpu=gpu, chosen=dict(zip(names, choices, strict=True)))
    generated = generate_cuda(dict.fromkeys(names, function), cuda_target(gpu), schedule)
    image = compiled(generated.code, gpu.arch)
    if image is None:
        raise CompileError("neither nvcc nor NVRTC is installed here, and variants have to be compiled")
    plans = tuple(_plan(number, name, function, generated) for number, name in enumerate(names, 1))
    digest = {"image": hashlib.sha256(image).hexdigest()}
    return Trial(Plans("cuda", gpu.arch, tvm.__version__, digest, plans, PLAN_FORMATS["cuda"]), image)


def _plan(number: int, name: str, function: Any, generated: Generated) -> LaunchPlan:
    """Return a plan that launches one variant again and again, each array at a place of its own."""
    arrays = [*map(scratch_of, function.params), *generated.scratch[name]]
    offsets, workspace_bytes = place([Lifetime(each.size_bytes, 0, 0) for each in arrays])
    launches = []
    for call in generated.calls[name]:
        operands = tuple(
            Operand(
                "workspace",
                0,
                offsets[index],
                arrays[index].size_bytes,
                arrays[index].dtype,
                arrays[index].shape,
                index in call.writes,
            )
            for index in call.arguments
        )
        launches.append(Launch(call.kernel, operands, call.grid, call.block, call.shared_bytes))
    return LaunchPlan(number, workspace_bytes, tuple(launches) * REPEATED)
