"""The models that the checks need, compiled into a store for each engine, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import CPU, CUDA, FP32, TVM, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import Gpu
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.zoo import build
from mainspring.experiments.gpu_check.settings import (
    LARGE,
    LARGE_SIZES,
    LENGTHS,
    LENGTHS_SIZES,
    Settings,
    put_variants,
    unavailable,
)
from mainspring.experiments.gpu_check.verdicts import State, Verdict, failed, told
from mainspring.worker.engines.cuda.devices import find_devices

_OPSET, _IR_VERSION = 17, 9
LENGTH = "length"
"""The open dimension of the model with buckets."""
WIDTH = 256


class Job(msgspec.Struct, frozen=True):
    """One model to compile."""

    engine: str
    name: str
    source: str
    """Architecture of the zoo, or `LARGE` or `LENGTHS`."""
    batch_sizes: tuple[int, ...]
    precision: str = FP32


def jobs_of(settings: Settings) -> list[Job]:
    """Return what is to be compiled, what most checks need first.

    Nothing for engines that can't be checked here, unless it is for another machine.
    """
    main, sizes = settings.main, settings.batch_sizes
    found = [
        Job(settings.engine, main, main, sizes),
        Job(settings.engine, LARGE, LARGE, LARGE_SIZES),
    ]
    if settings.engine == TVM or not settings.on_gpu:
        found.append(Job(settings.engine, LENGTHS, LENGTHS, LENGTHS_SIZES))
    if settings.on_gpu and settings.engine == TVM:
        sized = (sizes[0], sizes[-1])
        named = zip(settings.rounded, settings.precisions, strict=True)
        found += [Job(TVM, name, main, sized, precision) for name, precision in named]
    others = [name for name in settings.architectures if name != main]
    for engine in settings.engines:
        if not settings.arch and unavailable(settings, engine):
            continue
        if engine != settings.engine and main in settings.architectures:
            found.append(Job(engine, main, main, settings.few_sizes))
        found += [Job(engine, name, name, settings.few_sizes) for name in others]
    return found


def check_compiling(settings: Settings) -> list[Verdict]:
    """Compile everything, as many at a time as there are cores for; what takes too long is given up."""
    gpu = None if settings.arch else device_gpu(settings)
    arch = settings.arch or (gpu.arch if gpu is not None else "")
    began_s = time.monotonic()
    waiting = [job for job in jobs_of(settings) if not is_kept(settings, job)]
    kept = len(jobs_of(settings)) - len(waiting)
    targets = [msgspec.structs.replace(settings, arch=arch, gpu=gpu)]
    done, late, errors = compile_all(targets, waiting, began_s + settings.compile_s)
    put_second(settings)
    took = f"{len(done)} models in {time.monotonic() - began_s:.0f} s, {kept} were there already"
    found = [told("compiled" + (f" for {arch}" if arch else ""), took)]
    found += [failed(f"compiling {job.name} for {job.engine}", reason) for job, reason in errors]
    if late:
        names = ", ".join(f"{job.name} ({job.engine})" for job in late)
        reason = f"{settings.compile_s:.0f} s were over before {names}"
        found.append(Verdict(what="compiling the rest", state=State.NOT_RUN, found=reason))
    return found


def put_second(settings: Settings) -> None:
    """Store a model like the main one, with other weights, if there is none."""
    store = Store(settings.store(settings.engine))
    if settings.main in store.names() and settings.second not in store.names():
        put_variants(store, store, store.manifest(settings.main), [settings.second], 1)


def device_gpu(settings: Settings) -> Gpu | None:
    """Return the GPU that kernels have to be compiled for; None on the CPU."""
    number = settings.config().cuda_device
    return None if number is None else find_devices()[number].gpu


def is_done(settings: Settings, job: Job) -> bool:
    """Return True if there is nothing to compile: the store holds it, or its precision is for GPUs."""
    return (job.precision != FP32 and not settings.on_gpu) or is_kept(settings, job)


def is_kept(settings: Settings, job: Job) -> bool:
    """Return True if the store holds exactly this model, whole."""
    store = Store(settings.store(job.engine))
    try:
        manifest = store.manifest(job.name)
        store.verify(job.name)
    except StoreError:
        return False
    return manifest.source == source_of(settings, job) and manifest.batch_sizes == job.batch_sizes


def compile_all(
    targets: Sequence[Settings], jobs: Sequence[Job], end_s: float
) -> tuple[list[Job], list[Job], list[tuple[Job, str]]]:
    """Compile each model for all targets; ``arch`` of their settings is what for.

    Returns what was compiled by ``end_s``, what was not, and what can't be, with the reason.
    """
    cores = len(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    waiting, done, errors = list(jobs), [], []
    running: dict[SpawnProcess, Job] = {}
    try:
        while (waiting or running) and time.monotonic() < end_s:
            while waiting and len(running) < max(1, cores // 2):
                job = waiting.pop(0)
                process = spawn.Process(target=compile_one, args=(targets, job), daemon=True)
                process.start()
                running[process] = job
            for process in [process for process in running if not process.is_alive()]:
                job = running.pop(process)
                if process.exitcode == 0:
                    done.append(job)
                else:
                    errors.append((job, reason_of(targets[0], job)))
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
    return done, [*running.values(), *waiting], errors


def compile_one(targets: Sequence[Settings], job: Job) -> None:
    """Compile one model in this process; leave the reason in a file if that can't be.

    What the targets have in common is done once.
    """
    path = _reason_path(targets[0], job)
    path.unlink(missing_ok=True)
    try:
        for each in targets:
            if is_done(each, job):
                continue
            target = Target(job.engine, CUDA if each.on_gpu else CPU, precision=job.precision)
            target = msgspec.structs.replace(target, arch=each.arch or target.arch, gpu=each.gpu)
            model, store, source = model_of(each, job), Store(each.store(job.engine)), source_of(each, job)
            compile_model(model, job.name, store, job.batch_sizes, source, target=target)
    except Exception as error:
        traceback.print_exc()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(error) or repr(error), encoding="utf-8")
        raise SystemExit(1) from error


def reason_of(settings: Settings, job: Job) -> str:
    """Return what `compile_one` left."""
    try:
        return _reason_path(settings, job).read_text(encoding="utf-8")
    except OSError:
        return "its process died without a word"


def model_of(settings: Settings, job: Job) -> onnx.ModelProto:
    """Return the model to compile."""
    if job.source == LENGTHS:
        return lengths_model()
    return large_model(settings.large_shape) if job.source == LARGE else build(job.source)


def source_of(settings: Settings, job: Job) -> Source:
    """Return how the model's manifest says where it came from."""
    device = CUDA if settings.on_gpu else CPU
    if job.source == LENGTHS:
        most = {LENGTH: settings.longest}
        return Source("onnx", LENGTHS, engine=job.engine, device=device, most=most)
    if job.source != LARGE:
        return Source("zoo", job.source, engine=job.engine, device=device, precision=job.precision)
    return Source("onnx", f"{LARGE}-{settings.large_shape}", engine=job.engine, device=device)


def large_model(shape: tuple[int, int]) -> onnx.ModelProto:
    """Return a model whose only weight is a matrix of float32 of this shape."""
    rows, columns = shape
    weight = np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(rows**0.5)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        LARGE,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", columns])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def lengths_model() -> onnx.ModelProto:
    """Return two layers that are applied to each place of a sequence, of which any may be padding."""
    random = np.random.default_rng(1)
    weights = {
        name: random.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
        for name in ("first", "second")
    }
    shape: list[str | int | None] = ["batch", LENGTH, WIDTH]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["a"], name="first product"),
            helper.make_node("Relu", ["a"], ["b"], name="between"),
            helper.make_node("MatMul", ["b", "second"], ["c"], name="second product"),
            helper.make_node("Add", ["c", "x"], ["y"], name="sum"),
        ],
        LENGTHS,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, name) for name, weight in weights.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _reason_path(settings: Settings, job: Job) -> Path:
    return Path(settings.folder) / "reasons" / f"{job.engine}-{job.name}.txt"
