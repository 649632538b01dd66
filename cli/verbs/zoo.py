"""``mainspring zoo``: real architectures with seeded weights, compiled into a store."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.launcher.foreground import COPIES
from mainspring.cli.options import BATCH_SIZES, DEFAULT_STORE, AsJson, ModelStore, Seed
from mainspring.cli.verbs.compile import (
    DEFAULT_BATCH_SIZES,
    ArchOption,
    DeviceOption,
    EngineOption,
    PrecisionOption,
    TuneOption,
    tune_s,
)

if TYPE_CHECKING:
    from mainspring.compiler.choosing.durations import Judge
    from mainspring.compiler.program.compiled import Target


def zoo(
    architectures: Annotated[list[str] | None, typer.Argument(help="Architectures; see --list.")] = None,
    copies: Annotated[int, COPIES] = 1,
    store: ModelStore = DEFAULT_STORE,
    seed: Seed = 0,
    batch_sizes: Annotated[str, BATCH_SIZES] = DEFAULT_BATCH_SIZES,
    engine: EngineOption = "onnxruntime",
    device: DeviceOption = "cpu",
    arch: ArchOption = None,
    precision: PrecisionOption = "fp32",
    tune_seconds: TuneOption = None,
    list_: Annotated[bool, typer.Option("--list", help="Print what the zoo has.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make models of real architectures with random weights, or of Python code, and compile them."""
    from mainspring.cli.profiling.gpu_judge import judge_for
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.zoo.catalogue import names, python_models

    known = [*names(), *python_models()]
    if list_:
        print(json.dumps(known) if as_json else "\n".join(known))
    elif architectures:
        instead = _without_gpu(architectures, store, copies, seed, batch_sizes, arch)
        target, judge = judge_for(
            engine, device, arch, Store(store), instead, precision, tune_s(tune_seconds)
        )
        _compile(architectures, store, copies, seed, batch_sizes, target, judge, as_json=as_json)
    else:
        raise typer.BadParameter(f"name one or more of {', '.join(known)}")


def _compile(
    architectures: list[str],
    store: Path,
    copies: int,
    seed: int,
    batch_sizes: str,
    target: Target,
    judge: Judge | None,
    *,
    as_json: bool,
) -> None:
    from rich.console import Console

    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.pipeline import Compiled, parse_batch_sizes
    from mainspring.compiler.report import (
        describe_artifact,
        describe_engines,
        describe_profile,
        fields,
        summarise,
    )
    from mainspring.compiler.zoo.catalogue import compile_zoo

    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=as_json)
    begin = time.monotonic()
    done: list[Compiled] = []
    executables: set[str] = set()
    sizes = parse_batch_sizes(batch_sizes)
    with console.status("compiling") as status:
        for compiled in compile_zoo(architectures, Store(store), copies, seed, sizes, target, judge):
            done.append(compiled)
            console.print(describe_artifact(compiled))
            if compiled.manifest.executable not in executables:
                executables.add(compiled.manifest.executable)
                console.print(f"  {describe_profile(compiled)}")
                if compiled.engines:
                    console.print(f"  {describe_engines(compiled)}")
            status.update(f"compiled {len(done)} of {copies * len(architectures)}")
    console.print(summarise(done, time.monotonic() - begin))
    if as_json:
        print(json.dumps([fields(compiled) for compiled in done], indent=2))


def _without_gpu(
    architectures: Sequence[str], store: Path, copies: int, seed: int, batch_sizes: str, arch: str | None
) -> str:
    """Return how to find the faster engine where the compiling machine has no GPU."""
    options = ["--copies", str(copies)] if copies != 1 else []
    options += ["--seed", str(seed)] if seed else []
    options += ["--batch-sizes", batch_sizes] if batch_sizes != DEFAULT_BATCH_SIZES else []
    options += ["--arch", arch] if arch else []
    made, measured = [], []
    for engine in ("onnxruntime", "tvm"):
        words = ["--engine", engine, "--device", "cuda", *options]
        there = ["--store", f"{store}-{engine}"]
        made.append(shlex.join(["mainspring", "zoo", *architectures, *words, *there]))
        measured.append(shlex.join(["mainspring", "profile", "--device", "cuda:0", *there]))
    return (
        f"`{made[0]}` and `{made[1]}` compile for each engine, and with those stores on the machine that has "
        f"the GPU `{measured[0]}` and `{measured[1]}` say how they do"
    )
