"""``make gpu-bundle``: write the archive; ``--help`` says what may be chosen."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.plan import arch_number
from mainspring.experiments.gpu_check.bundle.contents import Bundle, BundleError
from mainspring.experiments.gpu_check.bundle.making import compile_models, fill, targets_of
from mainspring.experiments.gpu_check.bundle.packing import (
    MONITOR,
    MOST_BYTES,
    NUMPY,
    PYTHONS,
    Files,
    monitor_files,
    own_files,
    pack,
    package_files,
)
from mainspring.experiments.gpu_check.bundle.runner import BUNDLE, OWN, SITE
from mainspring.experiments.gpu_check.bundle.runner import NUMPY as NUMPY_FOLDER
from mainspring.experiments.gpu_check.settings import Settings, the_zoo

OUTPUT = Path("out/gpu_check.pyz")
WORK = Path("out/gpu-bundle")
ARCHS = ("sm_80", "sm_90")
SIZES = "1,2,4,8,16"
ROWS = 25_088


def collect(folder: Path, pythons: list[str], wheels: Path) -> Files:
    """Return all files of an archive, by their paths in it."""
    files = {f"{OWN}/{path}": content for path, content in own_files().items()}
    monitor = monitor_files(wheels)
    for python in pythons:
        files |= {f"{SITE}/{python}/{path}": content for path, content in monitor.items()}
        for package, found in package_files(python, wheels):
            kind = NUMPY_FOLDER if package == NUMPY else SITE
            files |= {f"{kind}/{python}/{path}": content for path, content in found.items()}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[f"{BUNDLE}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def carried(bundle: Bundle, pythons: list[str]) -> str:
    """Return in a few words what an archive holds."""
    return (
        f"Made {bundle.made}: {len(bundle.architectures)} models with machine code for "
        f"{', '.join(bundle.archs)} and PTX for GPUs from {bundle.oldest_ptx} on, whose weights are drawn "
        f"from seeds; Mainspring and its packages, numpy among them, for Python {', '.join(pythons)} on "
        "Linux x86_64."
    )


def chosen(names: list[str], sizes: str, large_rows: int) -> Settings:
    """Return what is compiled; of architectures that are named the first is measured most."""
    settings = Settings(
        architectures=tuple(names) or the_zoo(), batch_sizes=tuple(int(size) for size in sizes.split(","))
    )
    shape = (large_rows, settings.large_shape[1])
    main = names[0] if names else settings.main
    steady = tuple(name for name in settings.steady if name in settings.architectures) or (main,)
    return msgspec.structs.replace(settings, large_shape=shape, main=main, steady=steady)


def main(
    output: Annotated[Path, typer.Option(help="The archive.")] = OUTPUT,
    arch: Annotated[
        list[str] | None, typer.Option(help="A GPU to compile for, more than once: sm_80 and sm_90.")
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(help=f"A Python to carry packages for, more than once: {', '.join(PYTHONS)}."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="An architecture of the zoo, more than once, the one that is measured most first."),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Batch sizes of the one that is measured most.")] = SIZES,
    large_rows: Annotated[int, typer.Option(help="Rows of the model with one large tensor.")] = ROWS,
    work: Annotated[Path, typer.Option(help="Keeps models and wheels for the next time.")] = WORK,
    most_mib: Annotated[float, typer.Option(help="No larger archive is written.")] = MOST_BYTES / 2**20,
) -> None:
    """Write one archive with which gpu-check runs on a GPU machine without a network."""
    began_s = time.monotonic()
    pythons = python or list(PYTHONS)
    archs = sorted({*(arch or ARCHS)}, key=arch_number)
    try:
        targets = targets_of(work, chosen(model or [], sizes, large_rows), archs)
        jobs = compile_models(targets, _say)
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            bundle = fill(Path(scratch), targets, jobs, _say)
            files = collect(Path(scratch), pythons, work / "wheels")
        if not any(path.endswith("/pynvml.py") for path in files):
            _say(f"{MONITOR} can't be downloaded: clocks and throttling will not be read")
        about = carried(bundle, pythons)
        facts = {"carried": about, "pythons": pythons, "weights_bytes": bundle.weights_bytes}
        length = pack(files, facts, output, round(most_mib * 2**20))
    except (BundleError, CompileError, StoreError, OSError) as error:
        sys.exit(f"no archive was written: {error}")
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    _say(f"{output}: {length / 2**20:.1f} MiB in {time.monotonic() - began_s:.0f} s, SHA-256 {digest}")
    _say(about)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)
