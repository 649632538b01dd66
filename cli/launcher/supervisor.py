"""Runs a local cluster's processes: start, wait until they can serve, restart what dies, stop in order.

One thread does all of it (see `Process` for why). Controller, gateway and workers find each other again
by themselves after a restart; the supervisor only makes sure that they exist.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from mainspring.cli.launcher.addresses import answers, check_free, is_tcp, prepare_sockets
from mainspring.cli.launcher.crew import Crew
from mainspring.cli.launcher.jobs import GatewayJob, Job, WorkerJob
from mainspring.cli.launcher.plan import LAUNCHER, Plan
from mainspring.cli.launcher.process import Backoff, Process
from mainspring.cli.launcher.provider import ProviderLink
from mainspring.cli.launcher.readiness import Readiness
from mainspring.cli.launcher.repository import FirstLook
from mainspring.cli.launcher.run_dir import claimed, make_private
from mainspring.cli.launcher.shards import CHANGES
from mainspring.messages.roles import Role
from mainspring.transport.greeting import present

TEND_INTERVAL_S = 0.05
READINESS_POLL_MS = 50
CONSOLE_PATIENCE_S = 10.0
"""How long a cluster that can serve does not say so because its console can't be looked at yet."""
PROVIDER_PATIENCE_S = 5.0
"""Likewise because its controller does not know yet who starts workers."""
LEAST_STOP_S = 0.1
"""What a process gets to leave even if others have used the time up."""
STARTS_BEFORE_READY = 3
"""Starts of one process, before the cluster has ever served, after which something is simply wrong."""


class ClusterError(Exception):
    """The cluster can't be started; the text says which process failed and why."""


def _no_step(_step: str) -> None:
    """Show no step."""


class Supervisor:
    """The processes of one plan.

    ``say`` gets lines for a person about deaths and restarts, ``step`` what is being done at the start and at
    the end, again and again while that lasts.
    """

    def __init__(
        self, plan: Plan, say: Callable[[str], None], step: Callable[[str], None] = _no_step
    ) -> None:
        self._plan = plan
        self._say = say
        self._step = step
        cluster = plan.cluster
        jobs, self._token = with_own_token(plan.jobs)
        self._backoff_ns = round(cluster.restart_delay_ms * 1e6), round(cluster.restart_delay_max_ms * 1e6)
        self._processes = [self._made(job) for job in jobs]
        self._crew = Crew(plan.pool, self._processes, self._made, say)
        self._provider: ProviderLink | None = None
        self._serving = False
        self.first_look = FirstLook(plan.repository)
        """What came of the models that the repository held at the start."""
        self.faults: tuple[str, ...] = ()
        """When the cluster could serve: which models can't be, each with why."""
        self.served = 0
        """When the cluster could serve: how many models can be, a repository's apart."""

    def _made(self, job: Job) -> Process:
        return Process(job, self._plan.run_dir, Backoff(*self._backoff_ns))

    def pid(self, name: str) -> int | None:
        """Return the process id of the process of this name, None while it is down."""
        return next(process.pid for process in self._processes if process.job.name == name)

    def runs(self, name: str) -> bool:
        """Return whether there is a process of this name that runs."""
        return any(process.job.name == name and process.pid is not None for process in self._processes)

    def starts(self, name: str) -> int:
        """Return how often the process of this name was started."""
        return next(process.starts for process in self._processes if process.job.name == name)

    def run(self, stop: threading.Event, on_ready: Callable[[], None]) -> None:
        """Run the cluster until ``stop`` is set; call ``on_ready`` once, as soon as it can serve.

        Raises `ClusterError` if it can't be brought to serve; nothing is left running then.
        """
        self._step("checking the addresses")
        for address, remedy in self._plan.listening:
            check_free(address, remedy)
        with claimed(self._plan.run_dir):
            make_private(self._plan.run_dir)
            prepare_sockets(self._plan.cluster.secret_file, self._plan.run_dir)
            self.first_look.prepare()
            # What was changed lasts as long as this cluster: another begins with what it is told.
            for changes in self._plan.run_dir.glob(f"*{CHANGES}"):
                changes.unlink()
            try:
                for process in self._processes:
                    self._step(f"starting {process.job.name}")
                    process.start()
                self._wait_until_ready(stop)
                self._wait_for_console(stop)
                if not stop.is_set():
                    self._serving = True
                    self._provide(stop)
                    on_ready()
                while not stop.wait(TEND_INTERVAL_S):
                    self._tend()
                    if self._provider is not None:
                        self._provider.turn()
            finally:
                self._stop()

    def _provide(self, stop: threading.Event) -> None:
        """Begin to start and stop workers as the controller says; wait until it knows this provider."""
        plan = self._plan
        if len(plan.shards) > 1:
            return
        if is_tcp(plan.controller_address) and plan.cluster.keys and not plan.provider_keys:
            self._say(
                f"workers can't be scaled: [cluster] keys has no folder {LAUNCHER} for this process: "
                f"mainspring keys issue provider {LAUNCHER} --keys {plan.cluster.keys}"
            )
            return
        try:
            shows = present(Role.PROVIDER, plan.cluster.secret_file, plan.provider_keys)
        except OSError as error:
            self._say(f"workers can't be scaled: {error.strerror or error}")
            return
        self._provider = ProviderLink(plan.controller_address, LAUNCHER, self._crew, shows, self._say)
        give_up = time.monotonic() + PROVIDER_PATIENCE_S
        while not self._provider.known and not stop.wait(TEND_INTERVAL_S) and time.monotonic() < give_up:
            self._provider.turn()
            self._tend()

    def _wait_until_ready(self, stop: threading.Event) -> None:
        plan = self._plan
        give_up = time.monotonic() + plan.cluster.ready_timeout_s
        with Readiness(plan.gateway_address, plan.shards, plan.models, self._token) as readiness:
            while not stop.is_set() and not (
                readiness.poll(READINESS_POLL_MS) and (self.first_look.done() or time.monotonic() > give_up)
            ):
                self._tend()
                waits_for = readiness.blocked_by or self.first_look.state.waits_for
                self._step(f"waiting: {waits_for.partition(',')[0]}")
                if readiness.failure:
                    raise ClusterError(readiness.failure)
                if time.monotonic() > give_up and readiness.blocked_by:
                    raise ClusterError(
                        f"not ready after ready_timeout_s = {plan.cluster.ready_timeout_s:g} s: "
                        f"{readiness.blocked_by}; logs are in {plan.run_dir}"
                    )
            self.faults, self.served = readiness.faults, readiness.served

    def _wait_for_console(self, stop: threading.Event) -> None:
        """Wait a moment until the console, if there is one, can be looked at; serve without it if not."""
        give_up = time.monotonic() + CONSOLE_PATIENCE_S
        address = self._plan.console_address
        while address and not stop.is_set() and not answers(address):
            self._step("waiting: the console does not answer yet")
            if time.monotonic() > give_up:
                self._say(f"the console does not answer yet; its log is {self._plan.run_dir}/console.log")
                return
            self._tend()
            stop.wait(TEND_INTERVAL_S)

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
                f"{text}; started {process.starts} times in vain, its log is {process.log_path}"
            )
        delay_ms = ((process.restart_at_ns or now_ns) - now_ns) / 1e6
        process.fault = f"{text}; restarting it in {delay_ms:.0f} ms"
        self._say(process.fault)

    def _stop(self) -> None:
        """Stop in the order in which work flows, so that each has drained before the next is told.

        ``stop_timeout_s`` is for all of them together.
        """
        give_up = time.monotonic() + self._plan.cluster.stop_timeout_s
        if self._provider is not None:
            self._provider.close("the cluster stops")
        groups = [
            [process for process in self._processes if process.job.name in role]
            for role in self._plan.stop_order
        ]
        workers = [process for process in self._processes if isinstance(process.job, WorkerJob)]
        for group in (*groups, [*workers, *self._crew.leaving]):
            self._step(f"stopping {', '.join(process.job.name for process in group)}")
            for process in group:
                process.terminate()
            for process in group:
                if not process.wait(max(LEAST_STOP_S, give_up - time.monotonic())):
                    self._say(
                        f"{process.job.name} did not stop in {self._plan.cluster.stop_timeout_s:g} s: killed"
                    )
                    process.kill()
                    process.wait(self._plan.cluster.stop_timeout_s)


def with_own_token(jobs: Iterable[Job]) -> tuple[tuple[Job, ...], str]:
    """Return the jobs with a new token's digest given to gateways that need tokens, and the token.

    Jobs are written to files: the token itself is in none of them.
    """
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    return tuple([_given(job, digest) for job in jobs]), token


def _given(job: Job, digest: str) -> Job:
    if not isinstance(job, GatewayJob) or not job.gateway.token_file:
        return job
    gateway = msgspec.structs.replace(job.gateway, launcher_token_sha256=digest)
    return msgspec.structs.replace(job, gateway=gateway)


class LocalCluster:
    """Runs a plan while the ``with`` block runs, from a thread of its own.

    Entering waits until the cluster can serve and raises what kept it from that; leaving drains it.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.supervisor = Supervisor(plan, say)
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._ready = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.plan.gateway_address

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._settled.wait()
        except BaseException:
            self.close()
            raise
        if not self._ready:
            self._thread.join()
            raise self._error or ClusterError("the cluster was stopped before it could serve")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drain and stop every process; return when all are gone."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.supervisor.run(self._stop, self._on_ready)
        except BaseException as error:
            self._error = error
        finally:
            self._settled.set()

    def _on_ready(self) -> None:
        self._ready = True
        self._settled.set()
