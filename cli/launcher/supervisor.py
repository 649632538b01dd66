"""Runs a local cluster's processes: start, restart what dies, stop in order, each within a bound.

One thread does all of it (see `Process` for why). Controller, gateway and workers find each other again by
themselves after a restart; the supervisor only makes sure that they exist.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from mainspring.cli.launcher.jobs import Job, WorkerJob
from mainspring.cli.launcher.process_plan import Plan
from mainspring.cli.launcher.provider import Runner
from mainspring.cli.launcher.run_dir import open_private
from mainspring.cli.launcher.running import STARTS_BEFORE_READY, Beside, ClusterError, Running, no_step
from mainspring.cli.launcher.worker_jobs import WorkerPool
from mainspring.messages.scaling import Offer
from mainspring.messages.tables import ConfigError

LOG_TAIL_BYTES = 4096


class Process:
    """A job's process over its deaths and restarts. Used from one thread, which must outlive the child.

    The kernel kills a child when the *thread* that started it ends, so the thread that starts children stays.
    """

    def __init__(self, job: Job, run_dir: Path, backoff: Backoff) -> None:
        self.job = job
        self.starts = 0
        self.restart_at_ns: int | None = None
        self.fault = ""
        """Last problem of the process, for a person."""
        self._backoff = backoff
        self._job_path = run_dir / f"{job.name}.json"
        self.log_path = run_dir / f"{job.name}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._started_ns = 0

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid if self._child and self._child.poll() is None else None

    def start(self) -> None:
        """Start the job; the first start begins its log again, and later ones continue it.

        Raises OSError if the machine has no room for it, such as on a full disk.
        """
        if not self.starts or not self._job_path.exists():
            # Not at each start: the disk may be full by then.
            job = msgspec.structs.replace(self.job, parent_pid=os.getpid())
            with open(self._job_path, "wb", opener=open_private) as file:
                file.write(msgspec.json.format(msgspec.json.encode(job)))
        with open(self.log_path, "ab" if self.starts else "wb", opener=open_private) as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mainspring.cli.launcher.child", str(self._job_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.restart_at_ns = None
        self._started_ns = time.monotonic_ns()

    def ails(self, now_ns: int) -> bool:
        """Say whether ``fault`` still holds: it has not run long enough since."""
        runs = self._child is not None and now_ns - self._started_ns > self._backoff.longest_ns
        return bool(self.fault) and not runs

    def put_off(self, now_ns: int) -> None:
        """Settle when to try again after a start that failed."""
        self.restart_at_ns = now_ns + self._backoff.died(0)

    def reap(self, now_ns: int) -> str | None:
        """Return how the child died if it has since the last call, and set when it may start again."""
        if self._child is None or (code := self._child.poll()) is None:
            return None
        self._child = None
        self.restart_at_ns = now_ns + self._backoff.died(now_ns - self._started_ns)
        if code < 0:
            return f"killed by signal {-code}"
        return f"exit code {code}: {self._last_words()}"

    def _last_words(self) -> str:
        """Return the last line of the child's log, which is where it says why it left."""
        try:
            tail = self.log_path.read_bytes()[-LOG_TAIL_BYTES:]
        except OSError:
            return "its log can't be read"
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def terminate(self) -> None:
        """Ask the child to drain and leave."""
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """End the child at once."""
        if self._child is not None:
            self._child.kill()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the child is gone, waiting for it for at most that time."""
        if self._child is None:
            return True
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class Backoff(msgspec.Struct):
    """Delay before the next start: doubles with each death in a row, forgotten after a long life."""

    first_ns: int
    longest_ns: int
    """The delay grows no further; a process that lived longer than this starts afresh."""
    deaths: int = 0
    """Deaths in a row."""

    def died(self, lived_ns: int) -> int:
        """Count a death after a life of ``lived_ns``; return how long to wait before the next start."""
        self.deaths = 1 if lived_ns > self.longest_ns else self.deaths + 1
        return min(self.longest_ns, self.first_ns << min(self.deaths - 1, 32))


RETRY_NS = 2_000_000_000
"""The time until a worker that can't even be described is tried again."""


class _Unmade(msgspec.Struct, frozen=True):
    """A worker that is to run and has no process yet."""

    kind: str
    fault: str
    retry_ns: int


class Crew:
    """Adds worker processes to those that the supervisor tends, and takes them out of them."""

    def __init__(
        self,
        pool: WorkerPool,
        processes: list[Process],
        make: Callable[[Job], Process],
        say: Callable[[str], None],
    ) -> None:
        """``processes`` are all of the cluster's, with the workers that it begins with; ``make`` makes one
        more, which is not started yet."""
        self._pool = pool
        self._processes = processes
        self._make = make
        self._say = say
        self._most = max(pool.config.cluster.max_workers, pool.config.cluster.workers)
        self._stop_ns = round(pool.config.cluster.stop_timeout_s * 1e9)
        self._kinds = {name: kind.kind for kind in pool.kinds for name in kind.first}
        """The kind of each worker that is to run."""
        self._leaving: dict[str, tuple[Process, int]] = {}
        """Workers that were asked to leave, each with the instant at which it is killed."""
        self._unmade: dict[str, _Unmade] = {}

    def offers(self) -> tuple[Offer, ...]:
        """Return what runs, and what is wrong with it."""
        now_ns = time.monotonic_ns()
        faults: dict[str, str] = {self._kinds[name]: each.fault for name, each in self._unmade.items()}
        for process in self._processes:
            kind = self._kinds.get(process.job.name)
            if kind is not None and process.ails(now_ns):
                faults[kind] = process.fault
        return tuple(
            Offer(
                each.kind,
                each.stem,
                self._most,
                tuple([name for name, kind in self._kinds.items() if kind == each.kind]),
                faults.get(each.kind, ""),
                each.price,
            )
            for each in self._pool.kinds
        )

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:  # noqa: ARG002 - `ShardWorkers` keeps those
        """Start the workers that are missing, and tell all others of the kind to leave."""
        for name in [name for name, of_kind in self._kinds.items() if of_kind == kind]:
            if name not in workers:
                self._dismiss(name)
        for name in workers:
            if name not in self._kinds:
                self._kinds[name] = kind
                self._hire(kind, name, time.monotonic_ns())

    def tend(self, now_ns: int) -> None:
        """Try again what could not be started, and end what does not leave."""
        for name, each in list(self._unmade.items()):
            if now_ns >= each.retry_ns:
                del self._unmade[name]
                self._hire(each.kind, name, now_ns)
        for name, (process, kill_ns) in list(self._leaving.items()):
            if process.pid is None:
                process.wait(0.0)
                del self._leaving[name]
                if name in self._kinds:
                    # It was wanted again while it was on its way out.
                    self._hire(self._kinds[name], name, now_ns)
            elif now_ns >= kill_ns:
                self._say(f"{name} did not leave in time: killed")
                process.kill()
                # One that hangs in the kernel takes a while to die even so.
                self._leaving[name] = process, now_ns + self._stop_ns

    @property
    def leaving(self) -> list[Process]:
        """Workers that were asked to leave and have not yet."""
        return [process for process, _ in self._leaving.values()]

    def _hire(self, kind: str, name: str, now_ns: int) -> None:
        if name in self._leaving:
            return
        try:
            process = self._make(self._pool.job(kind, name))
        except ConfigError as error:
            self._unmade[name] = _Unmade(kind, f"{name}: {error}", now_ns + RETRY_NS)
            self._say(f"{name} can't be started: {error}")
            return
        self._processes.append(process)
        # The supervisor starts what is due, and tries again what can't be started.
        process.restart_at_ns = now_ns

    def _dismiss(self, name: str) -> None:
        del self._kinds[name]
        if self._unmade.pop(name, None) is not None:
            return
        for process in self._processes:
            if process.job.name == name and isinstance(process.job, WorkerJob):
                self._processes.remove(process)
                process.terminate()
                self._leaving[name] = process, time.monotonic_ns() + self._stop_ns
                return


LEAST_STOP_S = 0.1
"""Least time that a process gets to leave, even if others have used the time up."""


class Supervisor(Running):
    """The processes of one plan, on this machine."""

    def __init__(self, plan: Plan, say: Callable[[str], None], step: Callable[[str], None] = no_step) -> None:
        super().__init__(plan, say, step)
        cluster = plan.cluster
        self._backoff_ns = round(cluster.restart_delay_ms * 1e6), round(cluster.restart_delay_max_ms * 1e6)
        self._processes = [self._made(job) for job in self._jobs]
        self._crew = Crew(plan.pool, self._processes, self._made, say)

    def _made(self, job: Job) -> Process:
        return Process(job, self.plan.run_dir, Backoff(*self._backoff_ns))

    def pid(self, name: str) -> int | None:
        """Return the process id of the process of this name, None while it is down."""
        return next(process.pid for process in self._processes if process.job.name == name)

    def runs(self, name: str) -> bool:
        """Return whether there is a process of this name that runs."""
        return any(process.job.name == name and process.pid is not None for process in self._processes)

    def starts(self, name: str) -> int:
        """Return how often the process of this name was started."""
        return next(process.starts for process in self._processes if process.job.name == name)

    @property
    def _runner(self) -> Runner:
        return self._crew

    def _start(self) -> None:
        for process in self._processes:
            self._step(f"starting {process.job.name}")
            process.start()

    def _tend(self) -> None:
        """Notice deaths, and restart what has waited long enough."""
        now_ns = time.monotonic_ns()
        self._crew.tend(now_ns)
        for process in self._processes:
            death = process.reap(now_ns)
            if death is not None:
                self._report(process, death, now_ns)
            if process.restart_at_ns is not None and now_ns >= process.restart_at_ns:
                self._restart(process, now_ns)

    def _restart(self, process: Process, now_ns: int) -> None:
        """Start a process that died; what keeps it from starting must not take the others down."""
        try:
            process.start()
        except OSError as error:
            process.put_off(now_ns)
            delay_ms = ((process.restart_at_ns or now_ns) - now_ns) / 1e6
            process.fault = (
                f"{process.job.name} can't be started ({error}); trying again in {delay_ms:.0f} ms"
            )
            self._say(f"{process.fault}. Make room on this machine: disk, memory or processes")

    def _report(self, process: Process, death: str, now_ns: int) -> None:
        text = f"{process.job.name} died ({death})"
        vain = process.job.essential and process.starts >= STARTS_BEFORE_READY
        if not self._serving and vain:
            raise ClusterError(
                f"{text}, as at each of its {process.starts} starts; its log is {process.log_path}"
            )
        delay_ms = ((process.restart_at_ns or now_ns) - now_ns) / 1e6
        process.fault = f"{text}; restarting it in {delay_ms:.0f} ms"
        self._say(process.fault)

    def _stop(self) -> None:
        """Stop in the order in which work flows, so that each has drained before the next is stopped.

        ``stop_timeout_s`` is for all of them together.
        """
        give_up = time.monotonic() + self.plan.cluster.stop_timeout_s
        groups = [
            [process for process in self._processes if process.job.name in role]
            for role in self.plan.stop_order
        ]
        workers = [process for process in self._processes if isinstance(process.job, WorkerJob)]
        for group in (*groups, [*workers, *self._crew.leaving]):
            self._step(f"stopping {', '.join(process.job.name for process in group)}")
            for process in group:
                process.terminate()
            for process in group:
                if not process.wait(max(LEAST_STOP_S, give_up - time.monotonic())):
                    self._say(
                        f"{process.job.name} did not stop in {self.plan.cluster.stop_timeout_s:g} s: killed"
                    )
                    process.kill()
                    process.wait(self.plan.cluster.stop_timeout_s)


class LocalCluster(Beside):
    """A cluster of this machine's processes, run from a thread of its own."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.supervisor = Supervisor(plan, say)
        super().__init__(self.supervisor)
