"""The worker's pure core: exact windows, strict order, one result for each action (Clockwork, 4.4 and 5.2).

No clock, thread, socket or byte of a tensor: a driver (``executors`` and ``network``, or the simulator)
hands in instants on the worker's clock and carries out what the core decides. The core has no lock: one
driver at a time.

How to drive it::

    core = WorkerCore("w0", pages=64, page_bytes=PAGE_BYTES, io_bytes=64 << 20)
    results = core.submit(now_ns, action)      # refusals, and all results of Unload and Release
    core.input_arrived(action_id, request_id, now_ns)  # once for each request of an Infer
    job, results = core.begin(Executor.EXEC, now_ns)  # for each executor, when core.wake_ns says so
    results = core.expire(now_ns)                     # periodically while jobs run: what waited too long
    result = core.finish(Executor.EXEC, job.action.action_id, begin_ns, end_ns, device_ns)
    core.outputs_sent(job.slot)                # after an Infer that ended OK: frees its IO memory

* After ``submit``, ``input_arrived`` and ``finish`` call ``wake_ns`` again for **every** idle executor: a
  LOAD that finishes makes an INFER ready. ``begin`` may be called at any time; too early is harmless.
* While EXEC runs an Infer, ``stage`` may take the next one out of the queue, so that the driver can prepare
  it. It has not begun: after ``finish`` either ``begin_staged`` follows, inside its window, or ``begin``, for
  which it is back in the queue. ``unstage`` puts it back earlier: before ``stop`` and ``abandon``, when its
  latest instant has passed, and when it is ``outranked``. After ``commit`` it can't be put back: a device was
  given it. It goes on as a running job does, and ``begin_staged`` has to follow ``finish``.
* Executors: ``EXEC`` runs Infer and Open, ``LOAD`` runs Load, ``PREPARE`` runs Prepare; each one job at a
  time. Unload and Release are bookkeeping and take effect in ``submit``.
* An Infer begins once it heads its queue (order: ``(earliest_ns, action_id)``), its model is resident and
  all its inputs are there. Until then it waits at the head, and blocks those behind it, until ``latest_ns``
  has passed: NOT_RESIDENT, INPUT_MISSING or TOO_LATE, whichever stands first in this list and is true.
* A Prepare that ends with NOT_OPEN leaves its model with all but its executable, which an Open opens. If the
  Open fails, the model is forgotten and the engine has to release it; if it is too late, another may follow.
* Pages: owned from a Load's ``begin``, resident from its ``finish`` with OK, free again if it failed.
* IO memory: allocated in ``submit``, freed by every end of the Infer but OK, and by ``outputs_sent``.
* ``abandon`` forgets the actions of a lost controller, ``stop`` rejects all that have not begun.
"""

from __future__ import annotations

from mainspring.messages.actions import Action, Infer, Load, Open, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.worker.core.jobs import QUEUE_LIMITS, Begun, Ending, Executor, Job, Reservation, Slot
from mainspring.worker.core.residency import IoMemory, Residency
from mainspring.worker.core.window_queue import Pending, RecentIds, WindowQueue, model_name

STOPPING: Ending = (Status.STOPPING, "the worker is stopping")
"""Ending of the waiting actions of a stopping worker."""


class WorkerCore:
    """The state of one worker; the module's docstring says how to drive it."""

    def __init__(self, worker: str, pages: int, page_bytes: int, io_bytes: int) -> None:
        self.worker = worker
        self.io = IoMemory(io_bytes)
        self.residency = Residency(pages, page_bytes, self.io.size)
        self._pending: dict[int, Pending] = {}
        self._queues = {executor: WindowQueue() for executor in Executor}
        self._running: dict[Executor, Job] = {}
        self._staged: Pending | None = None
        """The Infer that EXEC runs next; it is in no queue."""
        self._committed = False
        """True if the staged Infer can't be put back."""
        self._abandoned: set[tuple[Executor, int]] = set()
        """Jobs that end without a result, by their action's id."""
        self._unsent: dict[int, Slot] = {}
        self._submitted = RecentIds()
        self._stopping = False

    # --- what goes in ---

    def submit(self, now_ns: int, action: Action) -> list[Result]:
        """Accept an action, or end it at once; a result returned here is the action's only one."""
        ending: Ending | None
        if action.worker != self.worker:
            ending = Status.BAD_ACTION, f"this is worker {self.worker}, not {action.worker}"
        elif self._stopping:
            ending = STOPPING
        elif not self._submitted.add(action.action_id):
            ending = Status.BAD_ACTION, f"action id {action.action_id} was used before"
        else:
            ending = self._accept(action)
        return [] if ending is None else [self._ended(action.action_id, now_ns, ending)]

    def input_arrived(self, action_id: int, request_id: int, now_ns: int = 0) -> bool:
        """Note that a request's inputs are all in its action's slot, or that it was withdrawn.

        Return whether they were waited for; anything else (unknown action or request, a repetition, an
        action that has begun) changes nothing. ``now_ns`` goes into `Result.inputs_ns`.
        """
        pending = self._pending.get(action_id)
        if pending is None or request_id not in pending.missing:
            return False
        pending.missing.discard(request_id)
        if not pending.missing:
            pending.inputs_ns = now_ns
        return True

    def input_refused(self, now_ns: int, action_id: int, request_id: int, detail: str) -> Result | None:
        """End a waiting Infer because a request's inputs are unusable; None if they weren't waited for."""
        pending = self._pending.get(action_id)
        if pending is None or request_id not in pending.missing:
            return None
        self._queues[pending.executor].remove(action_id)
        pending.inputs_ns = now_ns
        ending = Status.INPUT_MISSING, f"inputs of request {request_id}: {detail}"
        return self._drop(pending, now_ns, ending)

    # --- running ---

    def begin(self, executor: Executor, now_ns: int) -> Begun:
        """Decide what the executor does now: reject expired actions, begin the head if it is ready.

        Nothing happens while the executor runs a job. A returned job **has begun at ``now_ns``**, which is
        inside its window, and must be ended with `finish`.
        """
        if executor in self._running:
            return Begun(None, [])
        if executor is Executor.EXEC:
            self.unstage()
        queue = self._queues[executor]
        results = self._expired(executor, now_ns)
        while (head := queue.head()) is not None and head[0] <= now_ns:
            pending = self._pending[head[1]]
            if not self._ready(pending):
                break
            queue.remove(head[1])
            obstacle = self.residency.obstacle(pending.action)
            if obstacle is None:
                return Begun(self._start(pending, now_ns), results)
            results.append(self._drop(pending, now_ns, obstacle))
        return Begun(None, results)

    def expire(self, now_ns: int) -> list[Result]:
        """End actions that wait behind running jobs and can no longer begin in their windows.

        `begin` would only do so once the job has ended, and a refusal may be useless by then.
        """
        return [result for executor in self._running for result in self._expired(executor, now_ns)]

    def expiry_ns(self, executor: Executor) -> int | None:
        """The first instant at which `expire` would end an action of the executor's; None for never."""
        return self._queues[executor].first_expiry_ns() if executor in self._running else None

    def wake_ns(self, executor: Executor, now_ns: int) -> int | None:
        """The next instant, ``now_ns`` at the earliest, at which `begin` could change anything by itself.

        None while the executor runs a job, and while only a call from outside could change anything.
        """
        queue = self._queues[executor]
        head = queue.head()
        if executor in self._running or head is None:
            return None
        wake_ns = queue.first_expiry_ns()
        if self._ready(self._pending[head[1]]):
            wake_ns = head[0] if wake_ns is None else min(head[0], wake_ns)
        return None if wake_ns is None else max(wake_ns, now_ns)

    def awaits(self, executor: Executor) -> bool:
        """Return whether the first action waits for something from outside, such as inputs."""
        head = self._queues[executor].head()
        return head is not None and not self._ready(self._pending[head[1]])

    def finish(
        self,
        executor: Executor,
        action_id: int,
        begin_ns: int,
        end_ns: int,
        *,
        device_ns: int = 0,
        status: Status = Status.OK,
        detail: str = "",
    ) -> Result | None:
        """End the executor's running job and return its result; None if it was abandoned.

        A model whose PREPARE was abandoned does not count as prepared; the engine has to release it.
        ``status`` is OK, ENGINE_ERROR, BAD_VALUES of an Infer, or NOT_OPEN of a Prepare. Raises `ValueError`
        if the executor doesn't run this action.
        """
        job = self._running.get(executor)
        if job is None or job.action.action_id != action_id:
            raise ValueError(f"executor {executor} does not run action {action_id}; it runs {job}")
        del self._running[executor]
        abandoned = (executor, action_id) in self._abandoned
        self._abandoned.discard((executor, action_id))
        self._settle(job, status, abandoned)
        if abandoned:
            return None
        return Result(
            action_id, self.worker, status, begin_ns, end_ns, device_ns, detail, inputs_ns=job.inputs_ns
        )

    def outputs_sent(self, slot: Slot) -> None:
        """Free the IO memory of an Infer that ended OK (abandoned or not): ``job.io.slot``."""
        self.io.free(self._unsent.pop(slot.offset))

    # --- the next INFER, while one runs ---

    def stage(self, now_ns: int) -> Job | None:
        """Take the next Infer out of EXEC's queue, if it could begin now but for the one that runs.

        None while one is staged, while EXEC runs no Infer, and if the head of its queue is not ready. The
        job's ``begin_ns`` means nothing: it has not begun.
        """
        running, queue = self._running.get(Executor.EXEC), self._queues[Executor.EXEC]
        head = queue.head()
        if self._staged is not None or head is None or head[0] > now_ns:
            return None
        if running is None or not isinstance(running.action, Infer):
            return None
        pending = self._pending[head[1]]
        action = pending.action
        if not isinstance(action, Infer) or action.latest_ns < now_ns or not self._ready(pending):
            return None
        queue.remove(head[1])
        self._staged = pending
        return self._job(pending, 0)

    def unstage(self) -> None:
        """Put the staged Infer back into its queue, if there is one that is not committed."""
        if self._committed:
            return
        pending, self._staged = self._staged, None
        if pending is not None:
            self._push(pending)

    def stage_ns(self) -> int | None:
        """Return when `stage` would begin to take the next Infer; None if time alone does not lead to it."""
        running, head = self._running.get(Executor.EXEC), self._queues[Executor.EXEC].head()
        if self._staged is not None or head is None:
            return None
        if running is None or not isinstance(running.action, Infer):
            return None
        pending = self._pending[head[1]]
        return head[0] if isinstance(pending.action, Infer) and self._ready(pending) else None

    def commit(self) -> None:
        """Note that the device was given the staged Infer, and will begin it behind what runs.

        Raises `ValueError` if none is staged.
        """
        if self._staged is None:
            raise ValueError("there is no staged Infer to commit")
        self._committed = True

    def begin_staged(self, begin_ns: int) -> Job:
        """Note that EXEC, which runs nothing, has begun the staged Infer at an instant inside its window.

        One that is committed may have begun after its window: nobody could hold it back.
        Raises `ValueError` if none is staged, if EXEC runs a job, or outside the window.
        """
        pending = self._staged
        if pending is None or Executor.EXEC in self._running:
            raise ValueError(f"EXEC can't begin {pending}: it runs {self._running.get(Executor.EXEC)}")
        action = pending.action
        assert isinstance(action, Infer), f"{action} is staged"
        late = begin_ns > action.latest_ns and not self._committed
        if begin_ns < action.earliest_ns or late:
            raise ValueError(f"{begin_ns} is outside the window of {action}")
        # In this order, so that no other thread ever reads `quiet` between the two.
        job = self._start(pending, begin_ns)
        self._staged, self._committed = None, False
        return job

    @property
    def staged(self) -> Infer | None:
        """The staged Infer, unless it is committed."""
        action = None if self._staged is None or self._committed else self._staged.action
        return action if isinstance(action, Infer) else None

    @property
    def committed(self) -> bool:
        """Return whether an Infer is committed that has not begun."""
        return self._committed

    @property
    def outranked(self) -> bool:
        """Return whether an action waits that precedes the staged one."""
        staged, head = self.staged, self._queues[Executor.EXEC].head()
        if staged is None or head is None:
            return False
        return head[0] < staged.earliest_ns or (head[0] == staged.earliest_ns and head[1] < staged.action_id)

    # --- the end ---

    def stop(self, now_ns: int) -> list[Result]:
        """Reject all queued actions, and from now on all submitted ones; running and committed jobs go on."""
        self._stopping = True
        waiting = [action_id for queue in self._queues.values() for action_id in queue.clear()]
        return [self._drop(self._pending[action_id], now_ns, STOPPING) for action_id in waiting]

    # --- a lost controller ---

    def abandon(self) -> list[int]:
        """Forget all queued actions, without results; return their ids.

        For a worker whose controller has lost it: the controller already counts these actions as failed.
        Running jobs, and a committed one, can't be stopped: their `finish` will return None. Say hello again
        only once `quiet` (a running EXEC or LOAD has ended), so that the hello names what the pages hold. A
        running PREPARE need not be awaited: its model will not count as prepared, because the hello does not
        name it and the next controller may serve another artifact of that name. `forget_closed` has to
        follow.
        """
        forgotten = [action_id for queue in self._queues.values() for action_id in queue.clear()]
        for action_id in forgotten:
            self._forget(self._pending[action_id])
        self._abandoned.update((executor, job.action.action_id) for executor, job in self._running.items())
        if self._committed and self._staged is not None:
            self._abandoned.add((Executor.EXEC, self._staged.action.action_id))
        self._submitted = RecentIds()
        return forgotten

    def forget_closed(self) -> list[str]:
        """Forget models whose executables were yet to be opened; return their names, for the engine.

        The hello does not name them. What an Open that runs is about is kept: its end decides.
        """
        return self.residency.forget_all_closed()

    @property
    def quiet(self) -> bool:
        """Return whether neither EXEC nor LOAD runs a job, and none is staged for EXEC."""
        running = self._running
        return Executor.EXEC not in running and Executor.LOAD not in running and self._staged is None

    # --- what it holds ---

    def reservation(self, action_id: int) -> Reservation | None:
        """Return where a waiting Infer's inputs go; None if no such Infer waits."""
        pending = self._pending.get(action_id)
        return None if pending is None else pending.io

    def running(self, executor: Executor) -> Job | None:
        """The executor's running job."""
        return self._running.get(executor)

    @property
    def outstanding(self) -> int:
        """Actions that wait or run."""
        return len(self._pending) + len(self._running)

    def validate(self) -> None:
        """Raise `AssertionError`, which names the entity, unless the worker's invariants hold (rule 10)."""
        pins: dict[str, int] = {}
        actions = [pending.action for pending in self._pending.values()]
        for action in actions + [job.action for job in self._running.values()]:
            name = model_name(action)
            pins[name] = pins.get(name, 0) + 1
        self.residency.validate(pins)
        self.io.validate()
        queued = sum(len(queue) for queue in self._queues.values())
        queued += self._staged is not None
        assert self._staged is not None or not self._committed, "an Infer is committed that is not staged"
        assert queued == len(self._pending), f"{queued} actions queued, {len(self._pending)} pending"
        infer, load = self._running.get(Executor.EXEC), self._running.get(Executor.LOAD)
        if infer is not None and isinstance(infer.action, Open):
            infer = None
        assert infer is None or self.residency.is_resident(infer.model.name), f"not resident: {infer}"
        loading = [] if load is None else [load.model.name]
        assert self.residency.pages.loading() == loading, f"loading is not {loading}"
        slots = len(self._unsent) + (infer is not None)
        slots += sum(pending.io is not None for pending in self._pending.values())
        assert slots == self.io.slots, f"{self.io.slots} slots allocated, {slots} in use"

    # --- inside ---

    def _accept(self, action: Action) -> Ending | None:
        match action:
            # The most frequent ones come first.
            case Infer():
                return self._accept_infer(action)
            case Load():
                return self.residency.load_fault(action) or self._enqueue(Executor.LOAD, action)
            case Unload():
                return self.residency.unload(action.model)
            case Release():
                return self.residency.release(action.model)
            case Prepare():
                return self.residency.obstacle(action) or self._enqueue(Executor.PREPARE, action)
            case Open():
                return self.residency.open_fault(action) or self._enqueue(Executor.EXEC, action)

    def _accept_infer(self, action: Infer) -> Ending | None:
        action = self.residency.resolved(action)
        prepared = self.residency.find(action.model)
        if prepared is None:
            return Status.NOT_PREPARED, f"model {action.model} is not prepared"
        fault = prepared.infer_fault(action)
        if fault is not None:
            return fault
        layout, size = prepared.place(action)
        slot = self.io.allocate(size)
        if slot is None:
            return Status.NO_IO_MEMORY, f"no {size} bytes of IO memory in one piece are free"
        fault = self._enqueue(Executor.EXEC, action, Reservation(slot, layout))
        if fault is not None:
            self.io.free(slot)
        return fault

    def _enqueue(
        self, executor: Executor, action: Infer | Load | Prepare | Open, io: Reservation | None = None
    ) -> Ending | None:
        queue = self._queues[executor]
        if len(queue) >= QUEUE_LIMITS[executor]:
            return Status.BAD_ACTION, f"{len(queue)} actions wait for executor {executor} already"
        pending = Pending(executor, action, io)
        self._push(pending)
        self._pending[action.action_id] = pending
        self.residency.pin(model_name(action))
        return None

    def _push(self, pending: Pending) -> None:
        action, queue = pending.action, self._queues[pending.executor]
        if isinstance(action, Prepare):
            queue.push(action.action_id, 0, None)
        else:
            queue.push(action.action_id, action.earliest_ns, action.latest_ns)

    def _ready(self, pending: Pending) -> bool:
        """Return whether the action needs nothing but time to begin or to be refused."""
        action = pending.action
        return not isinstance(action, Infer) or not (
            pending.missing or not self.residency.is_resident(action.model)
        )

    def _expired(self, executor: Executor, now_ns: int) -> list[Result]:
        """End the expired actions of an executor's queue."""
        results = []
        for action_id in self._queues[executor].pop_expired(now_ns):
            pending = self._pending[action_id]
            resident = self.residency.is_resident(model_name(pending.action))
            results.append(self._drop(pending, now_ns, pending.why_expired(resident=resident)))
        return results

    def _start(self, pending: Pending, now_ns: int) -> Job:
        action = pending.action
        del self._pending[action.action_id]
        if isinstance(action, Load):
            self.residency.pages.acquire(action.model, action.pages)
        job = self._running[pending.executor] = self._job(pending, now_ns)
        return job

    def _job(self, pending: Pending, now_ns: int) -> Job:
        action = pending.action
        if isinstance(action, Prepare):
            model = action.model
        elif isinstance(action, Open):
            closed = self.residency.closed(action.model)
            assert closed is not None, f"{action} was accepted, so its model is there and pinned"
            model = closed
        else:
            prepared = self.residency.find(action.model)
            assert prepared is not None, f"{action} was accepted, so its model is prepared and pinned"
            model = prepared.model
        return Job(action, model, now_ns, pending.io, pending.inputs_ns)

    def _settle(self, job: Job, status: Status, abandoned: bool) -> None:
        """Apply a job's end to what the worker holds."""
        name, succeeded = job.model.name, status is Status.OK
        self.residency.unpin(name)
        match job.action:
            case Infer():
                assert job.io is not None, f"{job} has no IO memory"
                if succeeded:
                    self._unsent[job.io.slot.offset] = job.io.slot
                else:
                    self.io.free(job.io.slot)
            case Load():
                if succeeded:
                    self.residency.pages.confirm(name)
                else:
                    self.residency.pages.give_up(name)
            case Open() if succeeded:
                self.residency.add(job.model)
            case Prepare() if succeeded and not abandoned:
                self.residency.add(job.model)
            case Prepare() if status is Status.NOT_OPEN and not abandoned:
                self.residency.add_closed(job.model)
            case _:
                self.residency.forget_closed(name)

    def _drop(self, pending: Pending, now_ns: int, ending: Ending) -> Result:
        self._forget(pending)
        return self._ended(pending.action.action_id, now_ns, ending, pending.inputs_ns)

    def _forget(self, pending: Pending) -> None:
        del self._pending[pending.action.action_id]
        self.residency.unpin(model_name(pending.action))
        if pending.io is not None:
            self.io.free(pending.io.slot)

    def _ended(self, action_id: int, now_ns: int, ending: Ending, inputs_ns: int = 0) -> Result:
        status, detail = ending
        return Result(action_id, self.worker, status, now_ns, now_ns, 0, detail, inputs_ns=inputs_ns)
