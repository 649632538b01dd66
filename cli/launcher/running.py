"""A cluster from its start to its end, wherever its processes run: wait until it can serve, tend, stop.

`Supervisor` has the processes on this machine, `on_ray.RayCluster` as actors of Ray.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from mainspring.cli.launcher.addresses import answers, check_free, is_tcp, prepare_sockets
from mainspring.cli.launcher.jobs import GatewayJob, Job
from mainspring.cli.launcher.process_plan import CHANGES, LAUNCHER, LEASE, Plan
from mainspring.cli.launcher.provider import ProviderLink, Runner
from mainspring.cli.launcher.readiness import Readiness
from mainspring.cli.launcher.repository import FirstLook
from mainspring.cli.launcher.run_dir import claimed, make_private
from mainspring.cli.launcher.worker_jobs import stem_at
from mainspring.messages.roles import Role
from mainspring.messages.scaling import Offer
from mainspring.transport.greeting import present

_NOBODY = -1
"""The shard of a worker that went to a controller of which nothing is known here."""


class ShardWorkers:
    """The assignment of one runner's workers to controllers."""

    def __init__(self, runner: Runner, controllers: Sequence[str], first: Iterable[tuple[str, int]]) -> None:
        """``controllers``: their addresses, by shard; ``first``: the workers of the start, with their
        shards."""
        self.runner = runner
        self.controllers = tuple(controllers)
        self.shards = dict(first)
        """The shard of each worker that is to run."""
        self.came: set[str] = set()
        """Workers that came from another controller, of which theirs has not spoken yet."""

    def part(self, shard: int) -> ShardPart:
        """Return the runner of one controller's workers."""
        return ShardPart(self, shard)


class ShardPart:
    """The workers of one controller."""

    def __init__(self, whole: ShardWorkers, shard: int) -> None:
        self._whole = whole
        self._shard = shard

    def offers(self) -> tuple[Offer, ...]:
        """Return what runs for this controller, and what is wrong with it."""
        return tuple([self._own(offer) for offer in self._whole.runner.offers()])

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:
        """Run just these workers of a kind for this controller; those that moved, for theirs."""
        whole = self._whole
        for name, address in moved.items():
            if whole.shards.get(name) == self._shard:
                known = address in whole.controllers
                whole.shards[name] = whole.controllers.index(address) if known else _NOBODY
                whole.came.add(name)
        whole.came.difference_update(workers)
        there = next((each.workers for each in whole.runner.offers() if each.kind == kind), ())
        for name in there:
            if whole.shards.get(name) == self._shard and name not in workers:
                del whole.shards[name]
        mine = [name for name in workers if whole.shards.setdefault(name, self._shard) == self._shard]
        others = [name for name in there if whole.shards.get(name, self._shard) != self._shard]
        whole.runner.run(kind, (*others, *mine), {})

    def _own(self, offer: Offer) -> Offer:
        shards = self._whole.shards
        own = tuple([name for name in offer.workers if shards.get(name) == self._shard])
        # What is wrong begins with the worker's name.
        faulty = offer.fault.partition(" ")[0].rstrip(":")
        return msgspec.structs.replace(
            offer,
            stem=stem_at(offer.stem, self._shard),
            workers=own,
            fault=offer.fault if faulty in own else "",
            moved=tuple([name for name in own if name in self._whole.came]),
            taken=tuple([name for name in offer.workers if name not in own]),
        )


TEND_INTERVAL_S = 0.05
READINESS_POLL_MS = 50
CONSOLE_PATIENCE_S = 10.0
"""Time for which a cluster that can serve waits for its console before it says so."""
PROVIDER_PATIENCE_S = 5.0
"""Time for which it waits for its controller to know who starts workers before it says so."""
STARTS_BEFORE_READY = 3
"""Starts of one process, before the cluster has ever served, after which something is simply wrong."""


class ClusterError(Exception):
    """The cluster can't be started; the text says which process failed and why."""


def no_step(_step: str) -> None:
    """Show nothing."""


class Running(ABC):
    """The processes of one plan.

    ``say`` gets lines for a person about deaths and restarts, ``step`` what is being done at the start and at
    the end, again and again while that lasts.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None], step: Callable[[str], None] = no_step) -> None:
        self.plan = plan
        self._say = say
        self._step = step
        self._jobs, self._token = with_own_token(plan.jobs)
        self._providers: list[ProviderLink] = []
        """One for each controller."""
        self._serving = False
        self.first_look = FirstLook(plan.repository)
        """Outcome of the models that the repository held at the start."""
        self.faults: tuple[str, ...] = ()
        """Models that could not be served when the cluster began to serve, each with why."""
        self.served = 0
        """Number of models that could be served when the cluster began to serve, without a repository's."""

    def run(self, stop: threading.Event, on_ready: Callable[[], None]) -> None:
        """Run the cluster until ``stop`` is set; call ``on_ready`` once, as soon as it can serve.

        Raises `ClusterError` if it can't be brought to serve, `ConfigError` if something stands in its way;
        nothing is left running then.
        """
        self._step("checking the addresses")
        for address, remedy in self.plan.listening:
            check_free(address, remedy)
        with claimed(self.plan.run_dir):
            make_private(self.plan.run_dir)
            prepare_sockets(self.plan.run_dir)
            self.first_look.prepare()
            # What was changed lasts as long as this cluster: another begins with what it is told.
            for pattern in (f"*{CHANGES}", f"{LEASE}.*"):
                for changes in self.plan.run_dir.glob(pattern):
                    changes.unlink()
            try:
                self._start()
                self._wait_until_ready(stop)
                self._wait_for_console(stop)
                if not stop.is_set():
                    self._serving = True
                    self._provide(stop)
                    on_ready()
                while not stop.wait(TEND_INTERVAL_S):
                    self._tend()
                    for provider in self._providers:
                        provider.turn()
            finally:
                for provider in self._providers:
                    provider.close("the cluster stops")
                self._stop()

    @abstractmethod
    def _start(self) -> None:
        """Start all processes."""

    @abstractmethod
    def _tend(self) -> None:
        """Notice deaths, and do what they need; never waits."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop in the order in which work flows, within ``stop_timeout_s``."""

    @property
    @abstractmethod
    def _runner(self) -> Runner:
        """Return what starts and stops workers."""

    @property
    def _logs(self) -> str:
        """Return where a person finds the logs."""
        return f"logs are in {self.plan.run_dir}"

    def _provide(self, stop: threading.Event) -> None:
        """Begin to start and stop workers as controllers say; wait until they know this provider."""
        plan = self.plan
        if is_tcp(plan.controller_address) and plan.cluster.keys and not plan.provider_keys:
            self._say(
                f"workers can't be scaled: [cluster] keys has no folder {LAUNCHER} for this process: "
                f"mainspring keys issue provider {LAUNCHER} --keys {plan.cluster.keys}"
            )
            return
        try:
            shows = present(Role.PROVIDER, plan.provider_keys)
        except OSError as error:
            self._say(f"workers can't be scaled: {error.strerror or error}")
            return
        addresses = plan.pool.shards
        runners: list[Runner] = [self._runner]
        if len(addresses) > 1:
            workers = ShardWorkers(self._runner, addresses, plan.pool.first_shards())
            runners = [workers.part(shard) for shard in range(len(addresses))]
        self._providers = [
            ProviderLink(address, LAUNCHER, runner, shows, self._say)
            for address, runner in zip(addresses, runners, strict=True)
        ]
        give_up = time.monotonic() + PROVIDER_PATIENCE_S
        while not all(each.known for each in self._providers) and time.monotonic() < give_up:
            if stop.wait(TEND_INTERVAL_S):
                return
            for provider in self._providers:
                provider.turn()
            self._tend()

    def _wait_until_ready(self, stop: threading.Event) -> None:
        give_up = time.monotonic() + self.plan.cluster.ready_timeout_s
        for address in self.plan.gateway_addresses:
            self._wait_for_gateway(address, give_up, stop)

    def _wait_for_gateway(self, address: str, give_up: float, stop: threading.Event) -> None:
        plan = self.plan
        with Readiness(address, plan.shards, plan.models, self._token) as readiness:
            while not stop.is_set() and not (
                readiness.poll(READINESS_POLL_MS) and (self.first_look.done() or time.monotonic() > give_up)
            ):
                self._tend()
                waits_for = readiness.blocked_by or self.first_look.state.waits_for or "the repository starts"
                self._step(f"waiting: {waits_for.partition(',')[0]}")
                if readiness.failure:
                    raise ClusterError(readiness.failure)
                if time.monotonic() > give_up and readiness.blocked_by:
                    raise ClusterError(
                        f"not ready after ready_timeout_s = {plan.cluster.ready_timeout_s:g} s: "
                        f"{readiness.blocked_by}; {self._logs}"
                    )
            self.faults, self.served = readiness.faults, readiness.served

    def _wait_for_console(self, stop: threading.Event) -> None:
        """Wait a moment until the console, if there is one, answers; serve without it if not."""
        give_up = time.monotonic() + CONSOLE_PATIENCE_S
        address = self.plan.console_address
        while address and not stop.is_set() and not answers(address):
            self._step("waiting: the console does not answer yet")
            if time.monotonic() > give_up:
                self._say(f"the console does not answer yet; {self._logs}")
                return
            self._tend()
            stop.wait(TEND_INTERVAL_S)


class Beside:
    """Runs a cluster while the ``with`` block runs, from a thread of its own.

    Entering waits until the cluster can serve and raises what kept it from that; leaving drains it.
    """

    def __init__(self, running: Running) -> None:
        self.plan = running.plan
        self._running = running
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._ready = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    @property
    def address(self) -> str:
        """Return the address that clients connect to, that of the first gateway."""
        return self.plan.gateway_address

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all gateways."""
        return self.plan.gateway_addresses

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
            self._running.run(self._stop, self._on_ready)
        except BaseException as error:
            self._error = error
        finally:
            self._settled.set()

    def _on_ready(self) -> None:
        self._ready = True
        self._settled.set()


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
