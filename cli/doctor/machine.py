"""A check of what this machine allows a cluster: each question is tried out where that is possible.

A `Finding` that is not good says what it costs and how to mend it. Only a bad one that is ``fatal`` keeps
Mainspring from serving at all. The cluster's certificates and the machine's GPUs are among them.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from mainspring import extras
from mainspring.cli.configuration.config import AUTO, Config, Tables, merged
from mainspring.cli.configuration.fitting import BESIDE_BYTES, FEWEST_PAGES, defaults, usable_bytes
from mainspring.cli.launcher.gateways import gateway_names
from mainspring.cli.launcher.placement import place
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.descriptors import FILES_REMEDY, file_limit, share_of, shortage
from mainspring.messages.tables import ConfigError
from mainspring.native import CORES, Core, State, Use, how_to_compile
from mainspring.transport.keys import Keys, ServerKeys
from mainspring.worker.engines.cuda.devices import FoundDevice, find_devices
from mainspring.worker.engines.cuda.driver import DriverMissing
from mainspring.worker.engines.cuda.numa import node_of
from mainspring.worker.engines.cuda.nvml import NvmlMissing, read_states
from mainspring.worker.engines.cuda.state import GpuState, Problem, describe, idle_clock, problems
from mainspring.worker.limits import Limits, affinity, read_limits, size

LIBRARIES = ("mainspring", "onnxruntime", "onnx", "numpy", "pyzmq", "msgspec", "typer", "rich")
FILES_PER_MODEL = 2
"""Open files of a prepared model in a worker: its weights, and its executable while it is opened."""
FILES_BESIDE = 256
"""Open files of a worker beside its models: sockets, libraries."""
WAKE_UPS = 100
WAKE_UP_NS = 1_000_000
GOOD_WAKE_UP_NS = 500_000
GOOD_SHM_BYTES = 64 << 20
GOOD_DISK_BYTES = 2 << 30
_CAP_IPC_LOCK = 14


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One answer about this machine."""

    subject: str
    good: bool
    found: str
    costs: str = ""
    """Cost of what was found, if it is not good."""
    remedy: str = ""
    """Remedy for what was found, if it is not good."""
    fatal: bool = False
    """True if nothing can be served as long as it is not good."""


def examine(models: int, workers: int, folder: Path, gateway: GatewayConfig) -> list[Finding]:
    """Return what this machine allows ``workers`` workers with ``models`` models and files in ``folder``,
    and a gateway."""
    limits = read_limits()
    return [
        system(),
        cores(affinity(), workers, limits),
        memory(limits),
        realtime(try_realtime(), limits),
        locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], may_lock()),
        wake_ups(measure_wake_ups()),
        open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1], models),
        connections(gateway),
        space("shared memory", Path("/dev/shm"), GOOD_SHM_BYTES, "engines that share memory may fail"),
        space("disk", folder, GOOD_DISK_BYTES, "the model store and the event log need room"),
        devices(),
        *(compiled(core, core.state()) for core in CORES),
        libraries(),
    ]


def system() -> Finding:
    """Say whether this is Linux with a recent Python."""
    good = sys.platform == "linux" and sys.version_info >= (3, 11)
    return Finding(
        subject="system",
        good=good,
        found=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        costs="Mainspring does not run here",
        remedy="use Linux with Python 3.11 or newer",
        fatal=True,
    )


def cores(allowed: Sequence[int], workers: int, limits: Limits) -> Finding:
    """Say how the processes of a cluster would share these cores, and what a quota leaves of them."""
    placement = place(allowed, workers)
    execs = {core for cores in placement.exec_cores for core in cores}
    quota = len(allowed) if limits.cores is None else limits.cores
    found = f"{len(allowed)} usable"
    if limits.cpuset:
        found += f" (cpuset {limits.cpuset}, {limits.cpuset_by})"
    if limits.cores is not None:
        found += f", for the time of {limits.cores:g} cores ({limits.cores_by}{limits.waits()})"
    found += f": EXEC of {workers} worker(s) on {_numbers(execs)}, all else on {_numbers(placement.shared)}"
    return Finding(
        subject="cores",
        good=len(allowed) > workers and quota >= min(len(allowed), workers + 1) and not limits.throttled,
        found=found,
        costs="EXEC threads share cores or wait for the quota's next period, so that executions disturb each "
        "other and predictions are wrong",
        remedy=f"give the process {workers + 1} cores or run fewer workers (taskset, the container's cpuset "
        "and CPU limit)",
    )


def memory(limits: Limits) -> Finding:
    """Say how much memory a cluster may take, and that a worker fits."""
    usable = limits.memory_bytes
    worker = defaults((usable_bytes(limits) or 0) - 3 * BESIDE_BYTES, {})
    fits = f"a worker of a cluster has {worker['pages']} pages of 16 MiB by default"
    found = f"{size(usable or 0)} ({limits.memory_by or 'all of this machine'})"
    if limits.room is not None:
        of = "it" if limits.room.by == limits.memory_by else f"this machine's {size(limits.room.of_bytes)}"
        found += f", {size(limits.room.left_bytes)} of {of} free"
    return Finding(
        subject="memory",
        good=usable is None or worker["pages"] > FEWEST_PAGES,
        found="not known" if usable is None else f"{found}; {fits}",
        costs="hardly any weights fit into memory: most requests wait for a LOAD",
        remedy="raise the limit of the container or of the service's memory, or stop what else takes it",
    )


def try_realtime() -> OSError | None:
    """Try to give a thread real-time priority; return the refusal."""
    refusals: list[OSError] = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except OSError as error:
            refusals.append(error)

    thread = threading.Thread(target=attempt, name="realtime-probe")
    thread.start()
    thread.join()
    return refusals[0] if refusals else None


def realtime(refusal: OSError | None, limits: Limits) -> Finding:
    """Say whether a thread may have real-time priority."""
    remedy = "CAP_SYS_NICE (docker run --cap-add SYS_NICE, systemd AmbientCapabilities), or rtprio 50 in "
    remedy += "/etc/security/limits.conf"
    if limits.no_realtime_by:
        remedy = f"let the control group have such threads: {limits.no_realtime_by} is 0 (docker run "
        remedy += "--cpu-rt-runtime 950000)"
    return Finding(
        subject="real-time priority",
        good=refusal is None,
        found="a thread got SCHED_FIFO" if refusal is None else f"refused: {refusal.strerror}",
        costs="other programs can delay executions by milliseconds; tight deadlines are missed",
        remedy=remedy,
    )


def locked_memory(limit_bytes: int, capable: bool) -> Finding:
    """Say whether a worker may lock its memory."""
    unlimited = limit_bytes == resource.RLIM_INFINITY
    return Finding(
        subject="locked memory",
        good=unlimited or capable,
        found="unlimited" if unlimited else "CAP_IPC_LOCK" if capable else f"limit {size(limit_bytes)}",
        costs="weights may be swapped out, and the next execution waits for the disk",
        remedy="CAP_IPC_LOCK (docker run --cap-add IPC_LOCK), or memlock unlimited in "
        "/etc/security/limits.conf (docker run --ulimit memlock=-1)",
    )


def may_lock() -> bool:
    """Return whether this process has CAP_IPC_LOCK."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


def measure_wake_ups() -> list[int]:
    """Return, in order of size, by how many nanoseconds sleeps of 1 ms were too long."""
    late = []
    for _ in range(WAKE_UPS):
        began_ns = time.monotonic_ns()
        time.sleep(WAKE_UP_NS / 1e9)
        late.append(time.monotonic_ns() - began_ns - WAKE_UP_NS)
    return sorted(late)


def wake_ups(late_ns: list[int]) -> Finding:
    """Say how exactly a sleep ends; ``late_ns`` in order of size."""
    median_ns, worst_ns = late_ns[len(late_ns) // 2], late_ns[-1]
    high_ns = late_ns[len(late_ns) * 95 // 100]
    return Finding(
        subject="timed wake-ups",
        good=high_ns <= GOOD_WAKE_UP_NS,
        found=f"1 ms sleeps end {median_ns / 1e3:.0f} us late at the median, {high_ns / 1e3:.0f} us at the "
        f"95th percentile, {worst_ns / 1e3:.0f} us at worst",
        costs="every window needs that much more margin",
        remedy="stop what else runs on these cores, get real-time priority, or leave a shared machine",
    )


def open_files(hard_limit: int, models: int) -> Finding:
    """Say whether a worker may open the files that the models need."""
    needed = FILES_PER_MODEL * models + FILES_BESIDE
    unlimited = hard_limit == resource.RLIM_INFINITY
    limit = "unlimited" if unlimited else f"{hard_limit:,}"
    return Finding(
        subject="open files",
        good=unlimited or hard_limit >= needed,
        found=f"{limit} per process; {models:,} models need about {needed:,}",
        costs="models beyond the limit can't be prepared",
        remedy=FILES_REMEDY,
    )


def connections(gateway: GatewayConfig) -> Finding:
    """Say whether a gateway may have as many clients as it is configured for."""
    few = shortage(gateway)
    listeners = 1 + len(gateway.protocols)
    clients = share_of(file_limit(), listeners)
    return Finding(
        subject="connections",
        good=few is None,
        found=few.rpartition("; ")[0]
        if few
        else f"{clients:,} for each of a gateway's {listeners} protocols",
        costs="more clients are refused or lose idle connections",
        remedy=FILES_REMEDY,
    )


def space(subject: str, folder: Path, wanted_bytes: int, costs: str) -> Finding:
    """Say how much room a folder has, or its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return Finding(
        subject=subject,
        good=free >= wanted_bytes,
        found=f"{size(free)} free in {folder}",
        costs=costs,
        remedy=f"make room: at least {size(wanted_bytes)} in {folder} (docker run --shm-size for /dev/shm)",
    )


def devices() -> Finding:
    """Say what ONNX Runtime can run models on."""
    try:
        import onnxruntime

        providers = onnxruntime.get_available_providers()
    except ImportError as error:
        return Finding(
            subject="devices",
            good=False,
            found=f"ONNX Runtime can't be imported: {error}",
            costs="only emulated devices work",
            remedy=extras.command("serve"),
            fatal=True,
        )
    names = ", ".join(provider.removesuffix("ExecutionProvider") for provider in providers)
    cuda = "a CUDA provider is there" if "CUDAExecutionProvider" in providers else "no CUDA provider"
    gpus = "; an NVIDIA device is there" if Path("/dev/nvidia0").exists() else "; no NVIDIA device"
    return Finding(
        subject="devices",
        good="CPUExecutionProvider" in providers,
        found=f"ONNX Runtime runs on {names}; {cuda}{gpus}",
        costs="the CPU engine does not work",
        remedy="pip install --force-reinstall onnxruntime",
        fatal=True,
    )


def compiled(core: Core, state: State) -> Finding:
    """Say whether one of our own cores runs compiled."""
    how = {Use.COMPILED: "compiled", Use.PARTLY: f"compiled in part; {state.detail}"}
    return Finding(
        subject=f"compiled {core.name}",
        good=state.use is Use.COMPILED,
        found=f"{core.purpose}: {how.get(state.use, f'plain Python, {state.detail}')}",
        costs=f"plain Python takes {core.cost}",
        remedy=how_to_compile(state),
    )


def libraries() -> Finding:
    """Say which versions are installed."""
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return Finding(
        subject="libraries",
        good=not missing,
        found=", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else ""),
        costs="verbs that need them fail",
        remedy=extras.command("serve"),
    )


def store(folder: Path, check: Callable[[], int], damaged: Callable[[], list[str]] = list) -> Finding:
    """Say whether a store can be read and is of this CPU; ``check`` returns its models or raises.

    ``damaged`` returns what is wrong with single models, which costs the others nothing.
    """
    try:
        count, wrong = check(), damaged()
    except Exception as error:
        return Finding(
            subject="store",
            good=False,
            found=f"{folder}: {' '.join(str(error).split())}",
            costs="none of its models can be served here",
            remedy="compile the models on this machine: mainspring compile, or mainspring zoo",
            fatal=True,
        )
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return Finding(
            subject="store",
            good=False,
            found=f"{folder}: {wrong[0]}{more}",
            costs="that model is not served; the others are",
            remedy="run the command that is named there: a running cluster serves the model again by itself",
        )
    return Finding(
        subject="store",
        good=count > 0,
        found=f"{folder} holds {count} models for this machine",
        costs="there is nothing to serve",
        remedy="add a model: mainspring compile, or mainspring zoo",
    )


def _numbers(numbers: Iterable[int]) -> str:
    return "core " + ", ".join(map(str, sorted(set(numbers))))


SOON_DAYS = 30
"""A certificate that ends sooner is to be renewed."""
DAY_S = 86_400


def certificates(config: Config, now_s: float | None = None) -> list[Finding]:
    """Return what there is to say of the configured folders of keys; ``now_s``: seconds of the epoch."""
    now_s = time.time() if now_s is None else now_s
    found = []
    for key, role, name, folder in _folders(config):
        try:
            days = (ssl.cert_time_to_seconds(Keys(str(folder)).own.expires) - now_s) / DAY_S
        except OSError as error:
            found.append(_bad(f"{key}: {error.strerror}", f"mainspring keys issue {role} {name}"))
            continue
        said = f"{key}: that of the {name} is valid for {days:.0f} days"
        remedy = f"mainspring keys issue {role} {name} --keys {folder.parent}"
        found.append(
            Finding(subject="certificate", good=True, found=said)
            if days >= SOON_DAYS
            else _bad(said, f"{remedy}; a running process reads it within a second")
        )
    for key, path in (("[gateway] tls", config.gateway.tls), ("[console] tls", config.console.tls)):
        if not path:
            continue
        try:
            ServerKeys(path, clients=config.gateway.client_certificates and key == "[gateway] tls")
            found.append(Finding(subject="certificate", good=True, found=f"{key}: {path} can be shown"))
        except OSError as error:
            found.append(_bad(f"{key}: {error.strerror}", "mainspring keys issue gateway NAME --host HOST"))
    return found


def _bad(found: str, remedy: str) -> Finding:
    return Finding(
        subject="certificate",
        good=False,
        found=found,
        costs="connections with it are refused, now or once it has expired",
        remedy=remedy,
    )


def _folders(config: Config) -> Iterator[tuple[str, str, str, Path]]:
    """Yield the key, role, name and folder of each process that `mainspring up` gives keys."""
    if not config.cluster.keys:
        return
    names = [("controller", "controller"), *(("gateway", name) for name in gateway_names(config))]
    names += [("worker", f"worker-{number}") for number in range(config.cluster.workers)]
    names += [("repository", "repository")] if config.repository.path else []
    names += [("operator", "console")] if config.cluster.console else []
    for role, name in names:
        yield "[cluster] keys", role, name, Path(config.cluster.keys, name)


CONTROL_FILE = Path("/dev/nvidiactl")
"""Device file that exists where the kernel has NVIDIA's driver."""


@functools.cache
def usable_gpus() -> tuple[FoundDevice, ...]:
    """Return the GPUs that workers can have; raise `ConfigError`, which says what is missing, if none."""
    try:
        return tuple(find_devices())
    except DriverMissing as error:
        raise ConfigError(f'device = "cuda" needs a GPU: {error}') from None


def with_gpus(tables: Tables) -> dict[str, dict[str, Any]]:
    """Return a cluster's tables, completed if its device is ``cuda``: where they say nothing else, a worker
    for each GPU, all of its memory, and each model's own engine.

    Raises `ConfigError` if there is no GPU.
    """
    if tables.get("cluster", {}).get("device") != CUDA:
        return merged(tables, {})
    defaults: Tables = {"cluster": {"workers": len(usable_gpus()), "engine": AUTO}, "worker": {"pages": 0}}
    return merged(defaults, tables)


def gpu_findings(
    read: Callable[[], Sequence[GpuState]] = read_states, control_file: Path = CONTROL_FILE
) -> list[Finding]:
    """Return findings about this machine's GPUs; nothing where there is none."""
    try:
        states = read()
    except NvmlMissing as error:
        return [_unknown(error)] if control_file.exists() else []
    return [finding for state in states for finding in _about(state)]


def _unknown(error: NvmlMissing) -> Finding:
    return Finding(
        subject="GPUs",
        good=False,
        found=f"NVIDIA's driver is there, and the state of its GPUs is not known: {error}",
        costs="what makes their timing unpredictable is not noticed",
        remedy=f"{extras.command('gpu')}; in a container, start it with --gpus all",
    )


def _about(state: GpuState) -> list[Finding]:
    subject = f"GPU {state.index}"
    if state.silent:
        return [_bad_gpu(subject, each) for each in problems(state)]
    node = node_of(state.bus_id)
    near = "" if node is None else f", near memory node {node}"
    found = [Finding(subject=subject, good=True, found=describe(state) + near)]
    found += [_bad_gpu(subject, each) for each in (*idle_clock(state), *problems(state))]
    return found


def _bad_gpu(subject: str, problem: Problem) -> Finding:
    found, costs, remedy = problem
    return Finding(subject=subject, good=False, found=found, costs=costs, remedy=remedy)
