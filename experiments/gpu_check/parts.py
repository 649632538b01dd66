"""The checks by name, in the order in which they run: the telling ones first, the long ones last.

Each takes settings and gives verdicts as it finds them, in a process of its own and within a limit of time
(`run_alone`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import msgspec
import psutil

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.allocations import check_allocations
from mainspring.experiments.gpu_check.beside_torch import check_beside_torch
from mainspring.experiments.gpu_check.cluster import check_cluster, check_many
from mainspring.experiments.gpu_check.cycling import check_cycling
from mainspring.experiments.gpu_check.executing import check_executing, tell_device
from mainspring.experiments.gpu_check.graphs import check_graphs
from mainspring.experiments.gpu_check.loading import check_loading, check_pinning
from mainspring.experiments.gpu_check.opening import check_opening
from mainspring.experiments.gpu_check.outputs import check_buckets, check_large_tensor, check_outputs
from mainspring.experiments.gpu_check.sessions import check_sessions
from mainspring.experiments.gpu_check.settings import LARGE, LENGTHS, TVM, Settings, unavailable
from mainspring.experiments.gpu_check.shared import SHARED_BYTES, check_shared
from mainspring.experiments.gpu_check.steady import check_steadiness
from mainspring.experiments.gpu_check.tiles import check_tiles
from mainspring.experiments.gpu_check.verdicts import Verdict, as_rehearsed, failed, not_run
from mainspring.worker.config import MIB

ROOM = 1.25

Check = Callable[[Settings], Iterable[Verdict]]


class Part(NamedTuple):
    """One check."""

    check: Check
    patience_s: float
    """Time beyond that of the settings, after which its process is ended."""
    least_s: float = 5.0


def all_models(settings: Settings) -> Iterable[Verdict]:
    """Complete the models of a bundle, or compile them."""
    # Imported here, since what compiles is not there where a bundle is checked.
    if settings.bundle:
        from mainspring.experiments.gpu_check.bundle.drawing import check_drawing

        return check_drawing(settings)
    from mainspring.experiments.gpu_check.models import check_compiling

    return check_compiling(settings)


def all_outputs(settings: Settings) -> Iterator[Verdict]:
    """Compare the outputs of every engine that is installed."""
    for engine in settings.engines:
        reason = unavailable(settings, engine)
        if reason:
            yield not_run(f"models with the expected outputs, engine {engine}", reason)
        else:
            yield from check_outputs(settings, engine)


def allocations_if_any(settings: Settings) -> Iterable[Verdict]:
    """Count what a GPU's driver is asked for."""
    if not settings.on_gpu:
        return [not_run("LOAD and INFER: allocations", "only a GPU's driver can be counted")]
    return check_allocations(settings)


def graphs_if_any(settings: Settings) -> Iterable[Verdict]:
    """Compare graphs with their kernels where there are some."""
    if not settings.on_gpu or settings.engine != TVM:
        return [not_run("EXEC by graph launch above its kernels", "only the engine tvm on a GPU has graphs")]
    return check_graphs(settings)


PARTS: dict[str, Part] = {
    # The first to use the GPU: libraries come from a cold disk, and the driver may have to wake.
    "device": Part(tell_device, 60),
    "compile": Part(all_models, 30),
    "outputs": Part(all_outputs, 90),
    "load": Part(check_loading, 40),
    "exec": Part(check_executing, 80, 50),
    "cluster": Part(check_cluster, 60, 30),
    "open": Part(check_opening, 60, 25),
    "graphs": Part(graphs_if_any, 40, 10),
    "pinning": Part(check_pinning, 40, 20),
    "shared": Part(check_shared, 60, 10),
    "torch": Part(check_beside_torch, 90, 30),
    "tiles": Part(check_tiles, 240, 60),
    "large": Part(check_large_tensor, 40),
    "buckets": Part(check_buckets, 40),
    "allocations": Part(allocations_if_any, 40),
    "sessions": Part(check_sessions, 60, 20),
    "many": Part(check_many, 90, 110),
    "steady": Part(check_steadiness, 40, 30),
    "cycle": Part(check_cycling, 100, 60),
}


def least_s(name: str, settings: Settings) -> float:
    """Return how much of the budget has to be left for a check to be begun."""
    return 1.0 if settings.rehearsed else PARTS[name].least_s


def no_room(name: str, settings: Settings) -> str:
    """Return why there is too little host memory for what a check pins; nothing if there is enough.

    What a check makes less of where memory is short is not counted.
    """
    needed = pinned_bytes(name, settings)
    free = psutil.virtual_memory().available
    if needed * ROOM <= free:
        return ""
    return f"it pins {needed / 1e9:.1f} GB of host memory, and {free / 1e9:.1f} GB are available"


def pinned_bytes(name: str, settings: Settings) -> int:
    """Return how much host memory a check pins: the weights that it prepares at once, or what it measures."""
    if name == "pinning":
        return settings.pinned_mib * MIB
    if name == "shared":
        return SHARED_BYTES
    try:
        manifests = Store(settings.store(settings.engine)).manifests()
    except StoreError:
        # Nothing is compiled yet.
        return 0
    weights = {each.name: each.weights_bytes for each in manifests}
    pair = weights.get(settings.main, 0) + weights.get(settings.second, 0)
    if name == "outputs":
        return sum(weights.get(each, 0) for each in (*settings.architectures, *settings.rounded))
    if name == "buckets":
        return weights.get(LENGTHS, 0)
    if name in ("exec", "open", "large", "allocations"):
        return pair + weights.get(LARGE, 0)
    return pair if name in ("load", "cluster", "graphs", "torch", "tiles", "many", "steady") else 0


def patience_s(name: str, settings: Settings) -> float:
    """Return how long a check may take before it counts as hung."""
    told = {
        "compile": settings.compile_s,
        "steady": settings.infers_s,
        "cycle": settings.cycled_s,
        "open": settings.opening_s,
        "tiles": settings.tune_seconds,
        "many": settings.many_s,
        "cluster": settings.cluster_s * len(settings.cluster_slos_ms),
    }
    return PARTS[name].patience_s + told.get(name, 0.0)


END_S = 5.0
_LAST = b""


def run_alone(
    name: str, settings: Settings, limit_s: float, on_verdict: Callable[[Verdict], None] = lambda _: None
) -> list[Verdict]:
    """Return the verdicts of a check; its processes have ended then.

    If it is cut or dies, what it has found until then is kept, and one more says how it went wrong.
    ``on_verdict`` is told each as it comes.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=carry_out, args=(PARTS[name].check, name, settings, theirs))
    process.start()
    theirs.close()
    found: list[Verdict] = []
    for verdict in received(name, process, ours, limit_s):
        found.append(verdict)
        on_verdict(verdict)
    return found


def received(name: str, process: BaseProcess, answers: Connection, limit_s: float) -> Iterator[Verdict]:
    """Yield the verdicts of a process that runs `carry_out`, and one more if it does not end well."""
    end_s = time.monotonic() + limit_s
    ended = False
    try:
        while answers.poll(max(0.0, end_s - time.monotonic())):
            message = answers.recv_bytes()
            if message == _LAST:
                ended = True
                return
            yield msgspec.json.decode(message, type=Verdict)
        yield failed(f"check {name}", f"it had not ended after {limit_s:.0f} s")
    except EOFError:
        process.join(END_S)
        yield failed(f"check {name}", f"its process died: {_death(process.exitcode)}")
    finally:
        process.join(END_S if ended else 0)
        _end(process)


def carry_out(check: Check, name: str, settings: Settings, answers: Connection) -> None:
    """Send each verdict of a check as it is found, in a process of its own; then that it was the last."""
    # A group of its own, so that what it starts can be ended with it.
    os.setpgid(0, 0)
    try:
        for found in check(settings):
            verdict = as_rehearsed(found) if settings.rehearsed else found
            answers.send_bytes(msgspec.json.encode(verdict))
    except Exception as error:
        # Where GPUs are lent for minutes, nobody can come back to ask where it was raised.
        traceback.print_exc()
        answers.send_bytes(msgspec.json.encode(failed(f"check {name}", str(error) or repr(error))))
    answers.send_bytes(_LAST)


def _end(process: BaseProcess) -> None:
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
