"""The threads that drive the core: one for each executor, under one lock (Clockwork, section 5.2).

A thread asks the core what to begin, runs it on the engine without the lock, and reports the end. Waits
are exact: asleep until shortly before the instant, then spinning, and woken early when something comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from mainspring.compiler.artifact.errors import Interrupted, ValuesError
from mainspring.messages.actions import Infer, Load, Open, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.worker.batches import Committing, Driving, Ended, Outbox, Overruns, Staging, Waker, told
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Awakened, DeviceLost, Engine, OpensAlone, Queues, Stages, wait_until
from mainspring.worker.engines.artifacts import StoreWatch, check_runs
from mainspring.worker.fetching import Fetcher
from mainspring.worker.realtime import Rights, name_thread

LOG = logging.getLogger(__name__)

EXPIRY_NS = 5_000_000
"""While a job runs, how late a waiting action may be found unable to begin in its window."""
LONGEST_WAIT_NS: Final = 1_000_000_000
"""Longest wait of a thread at a time."""
BEATING_WAIT_NS: Final = 10_000_000
"""Longest wait of EXEC if the device is given heartbeats, which are not due while inputs are waited for."""
AHEAD_NS: Final = 10_000_000
"""An INFER without inputs can only be rejected, at an instant that hardly any of them reaches. EXEC is woken
for it when it is nearer than this, by the network thread, which looks in time: a wake-up for each INFER would
cost the network thread its turn with the interpreter's lock. A new action for LOAD or PREPARE usually begins
at once, and wakes its thread."""
SOON_NS = 100_000
"""EXEC, when it goes on at once, wakes the network thread unless that looks by itself within this time."""
CLEAR_NS = 1_000_000
"""Time before the next instant at which EXEC may have to begin in which it gives the device no heartbeat."""
EXACT_NS = 300_000
"""Time before an instant from which EXEC can't be woken: a wait on a condition ends up to 200 us late."""


class Executors:
    """Threads around a core; a thread that touches the core holds `driving`."""

    def __init__(
        self,
        core: WorkerCore,
        engine: Engine,
        rights: Rights,
        outbox: Outbox,
        spin_ns: int,
        watch: StoreWatch | None = None,
        heartbeat_ns: int = 0,
        overrun_ns: int = 0,
        fetcher: Fetcher | None = None,
        targets: tuple[str, ...] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        wakers: Mapping[Executor, Waker] | None = None,
    ) -> None:
        """A thread rings ``outbox`` when it is about to run or wait, lest it fight with the network thread
        for the interpreter's lock between jobs. ``watch`` notes models that fail; None without a store. After
        ``heartbeat_ns`` without work EXEC has the engine beat, if it can; 0 is never. ``overrun_ns`` is for
        `Overruns`. ``fetcher`` brings what a PREPARE lacks; ``targets`` are the hello's.
        ``wakers``: who calls `turn` when woken, where no threads are started; None for threads."""
        self._clock, self._worked_ns = clock, clock()
        self._core, self._engine, self._rights, self._outbox = core, engine, rights, outbox
        self._spin_ns, self._watch = spin_ns, watch
        self._fetcher, self._targets = fetcher, targets
        self._lock = threading.Lock()
        self._wakers: Mapping[Executor, Any] = wakers or {
            executor: threading.Condition(self._lock) for executor in Executor
        }
        self._due_ns = dict.fromkeys(Executor, -1)
        """Instant until which each thread waits; -1 while it does not wait."""
        self._chores: dict[Executor, deque[Callable[[], None]]] = {executor: deque() for executor in Executor}
        self._staging = Staging(core, engine, self._finish, clock)
        self._committing, self._overruns = Committing(core, engine, clock), Overruns(core, engine, overrun_ns)
        self._driving = Driving(core, self._lock, self._staging.settle, self._look_ahead)
        self._later_ns: int | None = None
        """Instant at which EXEC may have an INFER without inputs to reject, for which it is not woken yet."""
        self._sparing: set[str] = set()
        """Models for which PREPARE's thread is to make a spare."""
        self._looks_ns = 0
        """Instant at which the network thread looks for ends by itself."""
        self._heartbeat_ns = heartbeat_ns if isinstance(engine, Awakened) else 0
        self._stopping = False
        self.broken = ""
        """Reason why a thread ended that should not have ended; empty while all run."""
        self._threads = [
            threading.Thread(target=self._run, args=(executor,), name=executor, daemon=True)
            for executor in Executor
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def driving(self) -> Driving:
        """Hold the core; afterwards, threads whose next instant is now earlier are woken."""
        return self._driving

    def expire(self, longest_ns: int) -> int:
        """Report waiting actions that can no longer begin in their windows because a job takes long.

        Return the time, at most ``longest_ns``, after which to call this again. The network thread calls it
        before it sleeps for that time.
        """
        now_ns = self._clock()
        wait_ns = longest_ns
        if (later_ns := self._later_ns) is not None:
            if later_ns - now_ns <= AHEAD_NS:
                with self._lock:
                    self._wake()
            else:
                wait_ns = min(wait_ns, later_ns - now_ns - AHEAD_NS // 2)
        # The lock is not needed: a job that has just begun has not taken long.
        if not self._core.quiet:
            with self._lock:
                self._staging.settle()
                self._staging.withdraw_late(now_ns)
                self._overruns.look(now_ns, self._exec_computed_ns)
                for result in self._core.expire(now_ns):
                    self._outbox.put(result, None)
                self._look_ahead()
                looks_ns = self._staging.look_ns(now_ns), self._committing.look_ns(now_ns)
            look_ns = min((each for each in looks_ns if each is not None), default=now_ns + EXPIRY_NS)
            wait_ns = min(wait_ns, EXPIRY_NS, look_ns - now_ns)
        if not self._outbox.empty:
            wait_ns = 0
        self._looks_ns = now_ns + wait_ns
        return wait_ns

    def settle(self) -> None:
        """Put into the outbox what EXEC has ended without the core's lock."""
        if self._staging.unsettled:
            with self._driving:
                pass

    def withdraw(self) -> None:
        """Have no INFER staged, before `WorkerCore.stop`; the caller holds the core."""
        self._staging.withdraw()

    def abandon(self) -> None:
        """Forget the actions of a controller that has lost this worker; the caller holds the core."""
        self._staging.withdraw()
        self._core.abandon()
        self._overruns.interrupt()
        for name in self._core.forget_closed():
            self.release(name)

    def awaits_inputs(self, action_id: int) -> bool:
        """Return whether such an Infer waits; nothing changes, so the cost of `driving` is saved."""
        with self._lock:
            return self._core.reservation(action_id) is not None

    def report(self, result: Result) -> None:
        """Pass on the end of an action that had not begun; the caller holds the core."""
        self._outbox.put(result, None)
        self._outbox.ring()

    def unload(self, name: str) -> None:
        """Have the engine unload a model before the next LOAD; the caller holds the core."""
        self._chores[Executor.LOAD].append(lambda: self._engine.unload(name))

    def release(self, name: str) -> None:
        """Have the engine release a model before the next PREPARE; the caller holds the core."""
        self._chores[Executor.PREPARE].append(lambda: self._release(name))
        self._wakers[Executor.PREPARE].notify()

    def _release(self, name: str) -> None:
        self._engine.release(name)
        if self._fetcher is not None:
            self._fetcher.released(name)

    def look_at_store(self, watch: StoreWatch) -> None:
        """Have the files of failed models examined before the next PREPARE; the caller holds the core."""
        self._chores[Executor.PREPARE].append(watch.look)
        self._wakers[Executor.PREPARE].notify()

    def stop(self, timeout_s: float) -> bool:
        """Let running jobs finish and end the threads; return whether all have ended in time."""
        with self._lock:
            self._stopping = True
            for waker in self._wakers.values():
                waker.notify()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- one executor's thread ---

    def _run(self, executor: Executor) -> None:
        name_thread(executor)
        try:
            match executor:
                case Executor.EXEC:
                    self._rights.claim_exec()
                case Executor.LOAD:
                    self._rights.claim_load()
                case Executor.PREPARE:
                    self._rights.claim_prepare()
            job = self._next(executor)
            while job is not None:
                ended = self.carry_out(job)
                if executor is Executor.EXEC:
                    ended = self._carry_on(ended)
                job = self._next(executor, ended)
        except Exception as error:
            LOG.exception("executor %s ended", executor)
            self.broken = f"executor {executor} ended: {error!r}"
            self._outbox.call()

    def _next(self, executor: Executor, ended: Ended | None = None) -> Job | None:
        """End the job that has ended and wait for the next one; None when stopping."""
        with self._lock:
            if ended is not None and (committed := self._end(executor, ended)) is not None:
                return committed
            while not self._stopping:
                self._do_chores(executor)
                now_ns = self._clock()
                if (job := self._begin(executor, now_ns)) is not None:
                    return job
                if executor is Executor.EXEC and self._heartbeat_ns and self._beat(now_ns):
                    continue
                if not self._chores[executor]:
                    self._outbox.ring()
                    self._wait(executor, self._core.wake_ns(executor, now_ns))
            self._outbox.ring()
        return None

    def turn(self, executor: Executor, ended: Ended | None = None) -> Job | None:
        """End the job that has ended and begin the next one that can begin now; None if there is none.

        For a driver without threads, which is woken (``wakers``), and at `wake_ns`.
        """
        with self._lock:
            self._due_ns[executor] = -1
            if ended is not None and (committed := self._end(executor, ended)) is not None:
                return committed
            self._do_chores(executor)
            if (job := self._begin(executor, self._clock())) is None:
                self._outbox.ring()
                self._due_ns[executor] = self.wake_ns(executor)
            return job

    def wake_ns(self, executor: Executor) -> int:
        """Return when `turn` is to be called although nothing happens."""
        now_ns = self._clock()
        wake_ns = self._core.wake_ns(executor, now_ns)
        # Nothing begins, and nothing ends, twice at one instant.
        return now_ns + LONGEST_WAIT_NS if wake_ns is None else max(wake_ns, now_ns + 1)

    def _end(self, executor: Executor, ended: Ended) -> Job | None:
        """Let a job's end take effect; return what the device has gone on to. The caller holds the lock."""
        self._staging.settle()
        self._finish(executor, ended)
        if executor is Executor.EXEC:
            self._staging.clear()
            return self._committing.begin()
        if executor is Executor.LOAD:
            # An INFER may wait for these weights; no other end makes anything ready.
            self._look_ahead()
        return None

    def _begin(self, executor: Executor, now_ns: int) -> Job | None:
        """Begin what can begin, and report what can't any more; the caller holds the lock."""
        job, results = self._core.begin(executor, now_ns)
        for result in results:
            self._outbox.put(result, None)
        return job

    def _beat(self, now_ns: int) -> bool:
        """Beat if that is due and nothing else is; return whether it did. On the EXEC thread, lock held."""
        assert isinstance(self._engine, Awakened)
        if now_ns - self._worked_ns < self._heartbeat_ns or self._core.awaits(Executor.EXEC):
            return False
        wake_ns = self._core.wake_ns(Executor.EXEC, now_ns)
        if wake_ns is not None and wake_ns - now_ns < CLEAR_NS:
            return False
        self._lock.release()
        try:
            self._engine.heartbeat()
        except DeviceLost:
            raise
        except Exception as error:
            LOG.warning("the device gets no heartbeats any more: %r", error)
            self._heartbeat_ns = 0
        finally:
            self._lock.acquire()
        self._worked_ns = self._clock()
        return True

    def _do_chores(self, executor: Executor) -> None:
        chores = self._chores[executor]
        while chores:
            chore = chores.popleft()
            self._lock.release()
            try:
                chore()
            except Exception as error:
                LOG.warning("the engine could not clean up: %r", error)
            finally:
                self._lock.acquire()

    def _wait(self, executor: Executor, wake_ns: int | None) -> None:
        """Wait for an instant, or until `_wake`, with the lock held; EXEC waits in two steps."""
        now_ns = self._clock()
        exact_ns = EXACT_NS if executor is Executor.EXEC else 0
        beats = executor is Executor.EXEC and self._heartbeat_ns
        due_ns = now_ns + (BEATING_WAIT_NS if beats else LONGEST_WAIT_NS)
        if wake_ns is not None:
            due_ns = min(due_ns, wake_ns - exact_ns)
        if beats and now_ns < (beat_ns := self._worked_ns + self._heartbeat_ns):
            due_ns = min(due_ns, beat_ns)
        if due_ns > now_ns:
            self._due_ns[executor] = due_ns
            self._wakers[executor].wait((due_ns - now_ns) / 1e9)
        elif exact_ns and wake_ns is not None:
            self._lock.release()
            try:
                wait_until(wake_ns, self._spin_ns)
            finally:
                self._lock.acquire()
        self._due_ns[executor] = -1

    def _look_ahead(self) -> None:
        """Wake whom it concerns, and prepare the next INFER; the caller holds the lock."""
        self._wake()
        self._staging.fill()
        if not self._stopping:
            self._committing.fill()
        while self._staging.lacking:
            name = self._staging.lacking.pop()
            assert isinstance(self._engine, Stages)
            if name not in self._sparing:
                self._sparing.add(name)
                self._chores[Executor.PREPARE].append(partial(self._make_spare, self._engine, name))
                self._wakers[Executor.PREPARE].notify()

    def _make_spare(self, engine: Stages, name: str) -> None:
        try:
            engine.make_spare(name)
        finally:
            self._sparing.discard(name)

    def _wake(self) -> None:
        """Wake the threads whose next instant is now earlier, but for `AHEAD_NS`; lock held."""
        self._later_ns = None
        now_ns = self._clock()
        for executor, due_ns in self._due_ns.items():
            if due_ns < 0:
                continue
            wake_ns = self._core.wake_ns(executor, now_ns)
            if wake_ns is None or wake_ns >= due_ns:
                continue
            far = executor is Executor.EXEC and wake_ns - now_ns > AHEAD_NS
            if far and self._core.awaits(executor):
                self._later_ns = wake_ns
            else:
                self._wakers[executor].notify()

    def _finish(self, executor: Executor, ended: Ended) -> None:
        """Let a job's end take effect and report it; the caller holds the lock."""
        job, action = ended.job, ended.job.action
        if executor is Executor.EXEC:
            self._worked_ns = ended.end_ns
            self._staging.learn(ended)
            self._committing.learn(ended)
        # Of what failed to open, or to be prepared again, nothing is left but what the engine has.
        failed = ended.status is Status.ENGINE_ERROR and isinstance(action, Open | Prepare)
        if failed and self._core.residency.closed(job.model.name) is not None:
            self.release(job.model.name)
        result = self._core.finish(
            executor,
            job.action.action_id,
            ended.begin_ns,
            ended.end_ns,
            device_ns=ended.device_ns,
            status=ended.status,
            detail=ended.detail,
        )
        self._outbox.put(result, job.io if ended.status is Status.OK else None)
        if executor is Executor.PREPARE and result is None and ended.status is not Status.ENGINE_ERROR:
            # Abandoned: the core does not count the model as prepared.
            self.release(job.model.name)

    def _carry_on(self, ended: Ended) -> Ended:
        """EXEC, which has ended a job: run what is staged, as long as something is; return the last end."""
        while not self._stopping and (turn := self._staging.take(ended)) is not None:
            (job, _, staged), begin_ns = turn
            if self._looks_ns - begin_ns > SOON_NS:
                self._outbox.call()
            try:
                device_ns = staged.run()
            except DeviceLost:
                raise
            except Exception as error:
                ended = self._failed(job, begin_ns, error)
            else:
                ended = Ended(job, begin_ns, self._clock(), device_ns)
        return ended

    def _exec_computed_ns(self) -> int:
        """Return the processor time that EXEC's thread has taken."""
        ident = self._threads[list(Executor).index(Executor.EXEC)].ident
        assert ident is not None, "EXEC runs a job"
        return time.clock_gettime_ns(time.pthread_getcpuclockid(ident))

    def _failed(self, job: Job, begin_ns: int, error: Exception) -> Ended:
        if isinstance(error, Interrupted):
            return Ended(job, begin_ns, self._clock(), 0, Status.OVERRUN, told(job, self._clock()))
        at_fault = isinstance(job.action, Infer) and isinstance(error, ValuesError)
        status = Status.BAD_VALUES if at_fault else Status.ENGINE_ERROR
        return Ended(job, begin_ns, self._clock(), 0, status, str(error) or repr(error))

    def carry_out(self, job: Job) -> Ended:
        """Run a job on the engine; return how that ended."""
        status = Status.OK
        try:
            if isinstance(job.action, Infer) and self._committing.engine is not None:
                return self._compute(self._committing.engine, job)
            if isinstance(job.action, Prepare):
                self._bring(job.model)
            if isinstance(job.action, Prepare) and isinstance(self._engine, OpensAlone):
                status = self._fetch(self._engine, job)
                device_ns = self._clock() - job.begin_ns
            else:
                device_ns = self._on_engine(job)
        except DeviceLost:
            raise
        except Exception as error:
            ended = self._failed(job, job.begin_ns, error)
            if self._watch is not None and not isinstance(job.action, Infer):
                self._watch.failed(job.model)
            return ended
        if self._watch is not None and not isinstance(job.action, Infer):
            self._watch.worked(job.model.name)
        return Ended(job, job.begin_ns, self._clock(), device_ns, status)

    def _bring(self, model: ModelSpec) -> None:
        """Have what a PREPARE needs on this host; raise `EngineError` that says what is missing where."""
        check_runs(model, self._targets)
        if self._fetcher is not None:
            self._outbox.ring()
            self._fetcher.fetch(model)

    def _compute(self, engine: Queues, job: Job) -> Ended:
        """EXEC: have the device compute a batch, unless it has gone on to it, and give it the next one.

        What the device was given while it computed another begins when the device says so, other batches when
        the core had them begin: what the host does for them before is a part of them.
        """
        given, committed = self._committing.give(engine, job)
        with self._driving:
            pass
        self._outbox.ring()
        ran = given.wait()
        return Ended(job, ran.begin_ns if committed else job.begin_ns, ran.end_ns, ran.device_ns)

    def _fetch(self, engine: OpensAlone, job: Job) -> Status:
        """Prepare a model as far as it goes beside EXEC; return how that ends."""
        self._outbox.ring()
        return Status.OK if engine.fetch(job.model) else Status.NOT_OPEN

    def _on_engine(self, job: Job) -> int:
        self._outbox.ring()
        action = job.action
        if isinstance(action, Infer):
            assert job.io is not None, f"{job} has no IO memory"
            return self._engine.execute(action, job.io)
        if isinstance(action, Load):
            return self._engine.load(action)
        begin_ns = self._clock()
        self._engine.prepare(job.model)
        return self._clock() - begin_ns
