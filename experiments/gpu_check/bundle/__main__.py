"""``make gpu-bundle``: write the archive; ``--help`` says what may be chosen."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from mainspring.cli.profiling.lone_device import device_for
from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import CPU, FP32, Manifest
from mainspring.compiler.artifact.plan import CUBIN, PTX, arch_number, kernels_path, ptx_arch, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.bundle.contents import (
    DESCRIPTION,
    Bundle,
    BundleError,
    draw_rows,
    draws_like,
    draws_of,
    read_draws,
    store_path,
    write_batch,
    write_draws,
)
from mainspring.experiments.gpu_check.bundle.drawing import redraw
from mainspring.experiments.gpu_check.bundle.packing import (
    MONITOR,
    MOST_BYTES,
    NUMPY,
    PYTHONS,
    SMALLEST,
    Files,
    monitor_files,
    own_files,
    pack,
    package_files,
)
from mainspring.experiments.gpu_check.bundle.runner import BUNDLE, OWN, SITE
from mainspring.experiments.gpu_check.bundle.runner import NUMPY as NUMPY_FOLDER
from mainspring.experiments.gpu_check.models import Job, compile_all, is_done, jobs_of
from mainspring.experiments.gpu_check.settings import LARGE, LENGTHS, TVM, Settings, beside, the_zoo

Say = Callable[[str], None]


def targets_of(work: Path, settings: Settings, archs: Sequence[str]) -> list[Settings]:
    """Return the settings to compile with: for the CPU, then for each architecture; weights are shared."""
    weights = work / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    found = []
    for name in (CPU, *archs):
        device, arch = ("cpu", "") if name == CPU else ("cuda:0", name)
        each = msgspec.structs.replace(
            settings, folder=str(work / name), device=device, arch=arch, engines=(TVM,)
        )
        link = each.store(TVM) / "weights"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(weights.resolve(), target_is_directory=True)
        found.append(each)
    return found


def compile_models(targets: Sequence[Settings], say: Say) -> list[Job]:
    """Compile what is not kept from the last time; return all jobs.

    Raises `BundleError` for a model that can't be compiled.
    """
    jobs = jobs_of(targets[-1])
    waiting = [job for job in jobs if not all(is_done(each, job) for each in targets)]
    began_s = time.monotonic()
    say(f"{len(waiting)} of {len(jobs)} models have to be compiled")
    done, _, errors = compile_all(targets, waiting, float("inf"))
    for job, reason in errors:
        raise BundleError(f"{job.name} can't be compiled: {reason}")
    say(f"{len(done)} models compiled in {time.monotonic() - began_s:.0f} s")
    return jobs


def fill(folder: Path, targets: Sequence[Settings], jobs: Sequence[Job], say: Say) -> Bundle:
    """Write the files of a bundle into an empty folder; return its description, which is written too."""
    began_s = time.monotonic()
    weights: dict[str, int] = {}
    for job in jobs:
        if job.precision != FP32:
            weights[job.name] = add_rounded(folder, targets, job)
            continue
        weights[job.name] = add_model(folder, targets, job)
        say(f"{job.name}: outputs computed, {time.monotonic() - began_s:.0f} s")
    settings = targets[-1]
    archs = tuple(each.arch for each in targets[1:])
    bundle = Bundle(
        archs=archs,
        oldest_ptx=ptx_arch(archs[-1]).replace("compute_", "sm_"),
        main=settings.main,
        smallest=min(settings.architectures, key=lambda name: weights[name]),
        architectures=settings.architectures,
        batch_sizes={job.name: job.batch_sizes for job in jobs},
        precisions=settings.precisions,
        large_shape=settings.large_shape,
        weights_bytes=sum(weights.values()) + weights[settings.main],
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    (folder / DESCRIPTION).write_bytes(msgspec.json.encode(bundle))
    return bundle


def add_model(folder: Path, targets: Sequence[Settings], job: Job) -> int:
    """Add a model with what it has to give; return the bytes of its weights.

    Raises `BundleError` for kernels that take other weights than those for the CPU, and for outputs that are
    no numbers.
    """
    stores = [Store(each.store(TVM)) for each in targets]
    local, *others = [store.manifest(job.name) for store in stores]
    for other, each in zip(others, targets[1:], strict=True):
        if (other.weights_hash, other.tensors) != (local.weights_hash, local.tensors):
            raise BundleError(f"{job.name}: the kernels for {each.arch} take other weights than the CPU's")
    image = np.fromfile(stores[0].weights_path(local), np.uint8)
    write_draws(folder, job.name, *draws_of(local.tensors, image))
    with tempfile.TemporaryDirectory(dir=Path(targets[0].folder)) as scratch:
        store = beside(stores[0], Path(scratch), ["executables"])
        drawn = redraw(store, local, folder)
        add_outputs(folder, targets[0], store, drawn, sizes_of(targets[-1], job))
    for each in targets[1:]:
        add_kernels(folder, targets, each, job, drawn.weights_hash)
    return local.weights_bytes


def sizes_of(settings: Settings, job: Job) -> Sequence[int]:
    """Return the batch sizes whose outputs are compared; of the main model also in other precisions."""
    if job.name in (LARGE, LENGTHS):
        return job.batch_sizes
    rounded = settings.precisions and job.name == settings.main
    ends = (job.batch_sizes[0], job.batch_sizes[-1]) if rounded else ()
    return tuple(dict.fromkeys((*settings.few_sizes, *ends)))


def add_rounded(folder: Path, targets: Sequence[Settings], job: Job) -> int:
    """Add a model of another precision: the main one, which is there, gives its weights and its outputs.

    Returns the bytes of its weights, 0 if they are the main model's own. Raises `BundleError` for kernels
    that take other weights than those of the first architecture.
    """
    compiled = [Store(each.store(TVM)) for each in targets[1:]]
    manifests = [store.manifest(job.name) for store in compiled]
    first, main = manifests[0], compiled[0].manifest(job.source)
    drawn = Store(store_path(folder, targets[1].arch)).manifest(job.source)
    weights_hash, size_bytes = drawn.weights_hash, 0
    if first.tensors != main.tensors:
        exact = dict(
            zip((tensor.name for tensor in main.tensors), read_draws(folder, main.name)[0], strict=True)
        )
        image = np.fromfile(compiled[0].weights_path(first), np.uint8)
        write_draws(folder, job.name, *draws_like(first.tensors, image, exact))
        with tempfile.TemporaryDirectory(dir=Path(targets[0].folder)) as scratch:
            weights_hash = redraw(Store(Path(scratch)), first, folder).weights_hash
        size_bytes = first.weights_bytes
    for each, manifest in zip(targets[1:], manifests, strict=True):
        if (manifest.weights_hash, manifest.tensors) != (first.weights_hash, first.tensors):
            raise BundleError(f"{job.name}: its kernels for {each.arch} take other weights")
        add_kernels(folder, targets, each, job, weights_hash)
    return size_bytes


def add_kernels(
    folder: Path, targets: Sequence[Settings], settings: Settings, job: Job, weights_hash: str
) -> None:
    """Add a model as compiled for one of the targets; PTX of the last is for newer GPUs."""
    source, target = Store(settings.store(TVM)), Store(store_path(folder, settings.arch))
    manifest = source.manifest(job.name)
    copy_executable(source, manifest, target, [CUBIN, PTX] if settings is targets[-1] else [CUBIN])
    target.put_manifest(msgspec.structs.replace(manifest, weights_hash=weights_hash, profiles={}))


def add_outputs(
    folder: Path, settings: Settings, store: Store, manifest: Manifest, sizes: Sequence[int]
) -> None:
    """Keep what a model gives on this CPU with drawn weights; raise `BundleError` for no numbers."""
    spec = manifest.spec()
    config = msgspec.structs.replace(settings.config(TVM, store.root), realtime=False)
    with device_for([spec], config, copies=1) as device:
        device.prepare(spec)
        device.load(spec)
        for bucket, size in itertools.product(spec.buckets, sizes):
            shaped = spec.at(bucket) if bucket else spec
            outputs = device.run(spec, size, draw_rows(shaped, size), bucket)
            if not all(np.isfinite(array).all() for array in outputs if array.dtype.kind == "f"):
                raise BundleError(f"{spec.name} gives outputs that are not numbers with drawn weights")
            write_batch(folder, shaped, size, outputs)


def copy_executable(source: Store, manifest: Manifest, target: Store, kernels: Sequence[str]) -> None:
    """Copy an executable with some files of its kernels; raise `BundleError` if one was not compiled."""
    plans = read_plans(source, manifest)
    files = {}
    for name in kernels:
        path = kernels_path(source, manifest, plans, name)
        if path is None:
            raise BundleError(
                f"{manifest.name} has no {name}: neither nvcc nor NVRTC is installed here "
                "(`pip install '.[nvrtc]'`)"
            )
        files[name] = path.read_bytes()
    content = source.executable_path(manifest).read_bytes()
    target.put_executable(content, source.executable_info(manifest), files)


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
    preset: Annotated[
        int, typer.Option(min=0, max=9, help="How hard LZMA tries: 0 takes a fifth of the time of 6.")
    ] = SMALLEST,
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
        length = pack(files, facts, output, round(most_mib * 2**20), preset)
    except (BundleError, CompileError, StoreError, OSError) as error:
        sys.exit(f"no archive was written: {error}")
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    _say(f"{output}: {length / 2**20:.1f} MiB in {time.monotonic() - began_s:.0f} s, SHA-256 {digest}")
    _say(about)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)
