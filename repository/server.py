"""The repository's process: one event loop that looks, compiles, and asks the controller for the difference.

The process serves no requests: if it is slow, or dies, gateways, controller and workers go on with what they
have. `Reconciler` decides what is to be done; this module does it, and asks again when something has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from mainspring.messages.operating import SetGraph
from mainspring.messages.repository import ModelState
from mainspring.messages.roles import Role
from mainspring.repository.builds import Build, Patience, Stage
from mainspring.repository.compile_child import Job
from mainspring.repository.compiling import CompileFailed, Compiler, sweep
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.controller_link import Links, Refusal
from mainspring.repository.reconciler import (
    Add,
    Compile,
    Look,
    Reconciler,
    Retire,
    Serve,
    Step,
    Warm,
    index_of,
)
from mainspring.repository.requests import Control, Requests
from mainspring.repository.scanner import SETTLING_POLL_S, Scanner
from mainspring.repository.served_files import ServedFiles, State
from mainspring.transport.greeting import present

_LOGGER = logging.getLogger("mainspring.repository")
STOP_POLL_S = 0.05
STATUS_POLL_S = 0.1
"""Time between two looks at the workers' progress, in seconds."""
STATUS_SHARE = 10
"""The pause is at least this multiple of a look's duration: with thousands of models a look is work for the
controller."""
AGAIN_S = 1.0
"""Time after a refusal until the same is asked for again, in seconds."""
TURN_S = 2.0
"""The longest time between two comparisons of what should be with what is."""
QUIET_TURN_S = 60.0
"""Longest time between two comparisons while both are equal: every change wakes the process."""
MOST_AT_ONCE = 256
"""Changes that are asked for at one time."""
MOST_PROBLEMS = 50
STATE_NS = 500_000_000
"""Time between two writes of the state's file, while the repository is not settled."""
SWEEP_S = 30.0
"""Time between two garbage collections of the store, in seconds."""


def run(
    config: RepositoryConfig, stop: threading.Event, on_ready: Callable[[str], None] | None = None
) -> None:
    """Keep the cluster as the repository says until ``stop`` is set.

    ``on_ready`` is told the address, the real port included. Raises OSError if it can't be had.
    """
    asyncio.run(_run(config, stop, on_ready))


async def _run(
    config: RepositoryConfig, stop: threading.Event, on_ready: Callable[[str], None] | None
) -> None:
    repository = Repository(config)
    shows = present(Role.REPOSITORY, config.keys)
    control = Control(repository.requests.answer, config.address, shows)
    if on_ready is not None:
        on_ready(control.address)
    tasks = [asyncio.create_task(each) for each in (control.run(), *repository.tasks())]
    try:
        while not stop.is_set():
            await asyncio.wait(tasks, timeout=STOP_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    raise RuntimeError(f"{task.get_coro()} ended")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await repository.close()


class Repository:
    """One repository and its cluster."""

    def __init__(self, config: RepositoryConfig) -> None:
        self._config = config
        self._wake = asyncio.Event()
        self._files = ServedFiles(config.state_dir)
        self.reconciler = Reconciler(
            explicit=config.mode == "explicit",
            # Later, what is loaded is what clients have left loaded: the controller says.
            load_models=() if self._files.begun() else config.load_models,
            patience=Patience(round(config.prepare_patience_s * 1e9), round(config.warm_patience_s * 1e9)),
            shards=len(config.shards) or 1,
        )
        self._scanner = Scanner(config, self.reconciler, self._wake.set)
        self._links = Links(
            config.shards or (config.controller_address,),
            config.shard_pages,
            config.controller_timeout_ms,
            self.reconciler.cluster,
            self._wake.set,
            present(Role.REPOSITORY, config.keys),
        )
        self._compiler = Compiler(
            config.store, config.compile_timeout_s, config.compile_memory_bytes, config.op_libraries
        )
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._jobs: asyncio.Queue[Build] = asyncio.Queue()
        self._queued: list[Build] = []
        """Content of that queue, in its order."""
        self._compiling: Build | None = None
        self._adopted = False
        self._state_due_ns = 0
        self.requests = Requests(config, self.reconciler, self._scanner, self._wake.set)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs until the process stops."""
        return [self._links.run(), self._look(), self._settle(), self._compile(), self._watch_workers()]

    async def close(self) -> None:
        """End the compiler, and what is asked for."""
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        await self._compiler.close()

    # --- what runs ---

    async def _look(self) -> None:
        """Look at the folder for as long as the mode says."""
        while True:
            again = await self._scanner.look_around()
            if self._config.mode == "none" and not again:
                await asyncio.Event().wait()
            seconds = (
                SETTLING_POLL_S if again and not self._scanner.fault else self._config.poll_interval_ms / 1e3
            )
            await asyncio.sleep(min(seconds, self._config.poll_interval_ms / 1e3))

    async def _watch_workers(self) -> None:
        """Ask for the workers' progress while it is of interest."""
        while True:
            began_s = time.monotonic()
            if self.reconciler.preparing():
                with contextlib.suppress(Refusal):
                    for shard, status in (await self._links.statuses()).items():
                        self.reconciler.cluster.status(status, shard)
                    self._wake.set()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(STATUS_POLL_S, STATUS_SHARE * took_s))

    async def _settle(self) -> None:
        """Take the reconciler's steps whenever something has changed."""
        while True:
            if self.reconciler.cluster.known and not self._adopted:
                self._adopted = True
                self.reconciler.adopt()
            began_ns = time.monotonic_ns()
            for step in self.reconciler.steps(began_ns):
                self._begin(step)
            self._count_ahead()
            if self._compiling is not None and not self._is_wanted(self._compiling):
                await self._compiler.close()
            self._links.tell_awaited(self.reconciler.awaited)
            settled = self._write_state(began_ns)
            # Not more often than leaves half of the time for everything else.
            await asyncio.sleep((time.monotonic_ns() - began_ns) / 1e9)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), QUIET_TURN_S if settled else TURN_S)
            self._wake.clear()

    def _begin(self, step: Step) -> None:
        match step:
            case Compile(build=build):
                build.stage = Stage.QUEUED
                self._jobs.put_nowait(build)
                self._queued.append(build)
            case Add(spec=spec):
                self._ask(f"add {spec.name}", self._add(step))
            case Warm(name=name) if not self._links.loads(name):
                self._ask(f"load {name}", self._links.load(name))
            case Serve(model=model):
                self._ask(f"serve {model.name}", self._serve(step))
            case SetGraph(name=name):
                self._ask(f"serve graph {name}", self._set_graph(step))
            case Look(model=name):
                self._ask(f"look at model {name}", self._scanner.look(name, asked=False))
            case Retire(name=name):
                self._ask(f"remove {name}", self._retire(step))

    def _ask(self, what: str, doing: Coroutine[Any, Any, object]) -> None:
        """Do something once at a time; after a refusal, not at once again."""
        if what in self._busy or len(self._busy) >= MOST_AT_ONCE:
            doing.close()
            return

        async def do() -> None:
            try:
                await doing
            except (Refusal, OSError) as error:
                _LOGGER.log(
                    logging.INFO if isinstance(error, Refusal) and error.passing else logging.WARNING,
                    "could not %s: %s",
                    what,
                    error,
                )
                await asyncio.sleep(AGAIN_S)
            finally:
                del self._busy[what]
                self._wake.set()

        self._busy[what] = asyncio.create_task(do())

    async def _add(self, step: Add) -> None:
        try:
            await self._links.add(step.spec)
        except Refusal as error:
            if error.passing:
                raise
            for record in self.reconciler.records.values():
                if step.spec.name in record.builds:
                    record.builds[step.spec.name].fail(error.detail)
            raise

    async def _set_graph(self, step: SetGraph) -> None:
        try:
            await self._links.set_graph(step)
        except Refusal as error:
            if not error.passing and step.graph is not None:
                self.reconciler.records[step.name].refused = step.graph, error.detail
            raise

    async def _serve(self, step: Serve) -> None:
        if step.model.versions:
            self._files.write(step.model, step.specs)
        await self._links.serve(step.model)
        _LOGGER.info("model %s is served in versions %s", step.model.name, list(step.model.versions))
        if not step.model.versions:
            self._files.remove(step.model.name)

    async def _retire(self, step: Retire) -> None:
        await self._links.remove(step.name)

    async def _compile(self) -> None:
        """Compile one build after the other; while none waits, delete unused artifacts."""
        swept = False
        while True:
            try:
                async with asyncio.timeout(SWEEP_S):
                    build = await self._jobs.get()
            except TimeoutError:
                if self._config.own_store and self.reconciler.looked and self.reconciler.cluster.known:
                    await sweep(self._config.store, self.reconciler, always=not swept)
                    swept = True
                continue
            self._queued.remove(build)
            if self._is_wanted(build):
                build.stage = Stage.COMPILING
                self.reconciler.heard_of(build.model)
                self._wake.set()
                await self._compile_one(build)
            if build.stage in (Stage.QUEUED, Stage.COMPILING):  # It isn't wanted any more.
                build.stage = Stage.WAITING
                self.reconciler.heard_of(build.model)
                swept = False  # An end in the middle leaves parts of an artifact.

    def _count_ahead(self) -> None:
        """Say of each build that is queued how many come before it."""
        ahead = int(self._compiling is not None)
        for build in filter(self._is_wanted, self._queued):
            before, build.ahead = build.progress, ahead
            ahead += 1
            if build.progress != before:
                self.reconciler.heard_of(build.model)
                self._wake.set()

    def _is_wanted(self, build: Build) -> bool:
        """Return whether a version's content is still to be served: its files may have gone meanwhile."""
        record = self.reconciler.records.get(build.model)
        return record is not None and any(build is each for each in record.wanted.values())

    async def _compile_one(self, build: Build) -> None:
        folder = f"{self.reconciler.records[build.model].found.folder}/{build.version}"
        self._compiling = build
        try:
            build.compiled(
                await self._compiler.compile(
                    Job(build.name, folder, build.file_name, build.digest, build.recipe)
                )
            )
        except CompileFailed as error:
            if not self._is_wanted(build):
                _LOGGER.info("model %s, version %d is not compiled to its end", build.model, build.version)
                return
            _LOGGER.warning("model %s, version %d: %s", build.model, build.version, error)
            build.fail(str(error), passing=error.changed)
            # Another version may be served in its place.
            await self._scanner.look(build.model, asked=False)
        finally:
            self._compiling = None
        self.reconciler.heard_of(build.model)
        self._wake.set()

    def _write_state(self, now_ns: int) -> bool:
        """Write down how far the repository is, not too often; return whether there is nothing to be done."""
        reconciler = self.reconciler
        settled = reconciler.settled() or bool(self._scanner.fault)
        if settled or now_ns >= self._state_due_ns:
            self._state_due_ns = now_ns + STATE_NS
            self._write(settled)
        return settled

    def _write(self, settled: bool) -> None:
        reconciler = self.reconciler
        index = index_of(reconciler)
        waits = next((each for each in index if each.state is ModelState.LOADING), None)
        problems = [
            f"model {each.name}{f' version {each.version}' if each.version else ''}: {each.reason}"
            for each in index
            if each.reason
            and each.state in (ModelState.UNAVAILABLE, ModelState.READY)
            and each.reason != "unloaded"
        ]
        idle = "" if settled else "the folder of the model repository is looked at"
        fault = [self._scanner.fault] if self._scanner.fault else []
        state = State(
            settled=settled,
            models=len(reconciler.cluster.served),
            waits_for=idle
            if waits is None
            else f"model {waits.name} version {waits.version}: {waits.reason}",
            problems=(*fault, *problems[:MOST_PROBLEMS]),
        )
        try:
            self._files.write_state(state)
        except OSError as error:
            _LOGGER.warning("can't write the repository's state: %s", error)
