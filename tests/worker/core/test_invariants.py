"""Any sequence of actions, inputs, time and ends: the core's invariants hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainspring.messages.actions import Action, Infer, Load, Open, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import Executor, Job, Slot
from mainspring.worker.core.state_machine import WorkerCore
from tests.worker.peers import infer, load, opening, spec

MODELS = {"m": spec("m"), "n": spec("n", extents=(2, 1)), "o": spec("o", extents=(1, 1))}
NAMES = st.sampled_from(sorted(MODELS))
EXECUTORS = st.sampled_from(list(Executor))
PAGE = st.integers(-1, 6)
WINDOW = st.tuples(st.integers(-20, 60), st.integers(-3, 60))


class Worker(RuleBasedStateMachine):
    """A worker whose clock, controller, gateways and device are hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore("w", 6, PAGE_BYTES, 640)
        self.now_ns = 0
        self.last_id = 0
        self.waiting: dict[int, Action] = {}
        self.jobs: dict[Executor, Job] = {}
        self.inputs: set[tuple[int, int]] = set()
        self.unsent: list[Slot] = []
        self.staged: Job | None = None
        self.committed = False

    def submit(self, action: Action) -> None:
        self.waiting[action.action_id] = action
        self.settle(self.core.submit(self.now_ns, action))

    def settle(self, results: list[Result]) -> None:
        for result in results:
            assert self.waiting.pop(result.action_id, None) is not None, f"a second result: {result}"
            assert result.begin_ns == self.now_ns

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def window(self, drawn: tuple[int, int]) -> tuple[int, int]:
        earliest_ns = self.now_ns + drawn[0]
        return earliest_ns, earliest_ns + drawn[1]

    @initialize(names=st.lists(NAMES, unique=True))
    def begin_with(self, names: list[str]) -> None:
        """Most sequences should begin with something to load or to run."""
        for name in names:
            self.prepare(name)
            self.begin(Executor.PREPARE)
            self.finish(Executor.PREPARE, True)
        if "m" in names:
            self.load("m", 0, 0, (0, 0))
            self.begin(Executor.LOAD)
            self.finish(Executor.LOAD, True)

    @rule(name=NAMES)
    def prepare(self, name: str) -> None:
        self.submit(Prepare(self.new_id(), "w", MODELS[name]))

    @rule(name=NAMES, drawn=WINDOW)
    def open(self, name: str, drawn: tuple[int, int]) -> None:
        self.submit(opening(self.new_id(), name, self.window(drawn)))

    @rule()
    def forget_closed(self) -> None:
        self.core.forget_closed()

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.submit(Release(self.new_id(), "w", name))

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.submit(Unload(self.new_id(), "w", name))

    @rule(name=NAMES, first=PAGE, second=PAGE, drawn=WINDOW)
    def load(self, name: str, first: int, second: int, drawn: tuple[int, int]) -> None:
        pages = {"m": (first,), "n": (first, first + 1, second), "o": (first, second)}[name]
        self.submit(load(self.new_id(), pages, name, self.window(drawn)))

    @rule(name=NAMES, rows=st.lists(st.integers(1, 2), max_size=3), padding=st.integers(0, 1), drawn=WINDOW)
    def infer(self, name: str, rows: list[int], padding: int, drawn: tuple[int, int]) -> None:
        ids = tuple(range(len(rows)))
        size = sum(rows) + padding
        window = self.window(drawn)
        self.submit(infer(self.new_id(), ids, tuple(rows), batch_size=size, model=name, window=window))

    @rule(data=st.data())
    def input(self, data: st.DataObject) -> None:
        action_id = data.draw(st.integers(max(0, self.last_id - 5), self.last_id + 1))
        request_id = data.draw(st.integers(0, 2))
        if self.core.input_arrived(action_id, request_id):
            assert (action_id, request_id) not in self.inputs
            assert action_id in self.waiting
            self.inputs.add((action_id, request_id))

    @rule(data=st.data())
    def bad_input(self, data: st.DataObject) -> None:
        action_id = data.draw(st.integers(max(0, self.last_id - 5), self.last_id + 1))
        result = self.core.input_refused(self.now_ns, action_id, 0, "bad")
        self.settle([] if result is None else [result])

    @rule(step=st.integers(1, 40))
    def pass_time(self, step: int) -> None:
        self.now_ns += step

    @rule(executor=EXECUTORS)
    def sleep_until_wake(self, executor: Executor) -> None:
        wake_ns = self.core.wake_ns(executor, self.now_ns)
        if wake_ns is None:
            return
        assert wake_ns >= self.now_ns
        if wake_ns > self.now_ns:
            self.now_ns = wake_ns - 1
            self.staged = None if executor is Executor.EXEC else self.staged
            assert self.core.begin(executor, self.now_ns) == (None, []), "begin did something before wake_ns"
            self.now_ns = wake_ns
        assert self.begin(executor), "wake_ns promised a change"

    @rule(executor=EXECUTORS)
    def begin_whenever(self, executor: Executor) -> None:
        self.begin(executor)

    def begin(self, executor: Executor) -> bool:
        before = {
            key: action for key, action in self.waiting.items() if isinstance(action, Infer | Load | Open)
        }
        job, results = self.core.begin(executor, self.now_ns)
        if executor is Executor.EXEC and executor not in self.jobs:
            self.staged = None
        self.settle(results)
        for result in results:
            action = before.get(result.action_id)
            expired = action is not None and action.latest_ns < self.now_ns
            assert expired or result.status in (Status.BAD_PAGES, Status.BAD_ACTION, Status.OK, Status.BUSY)
        if job is not None:
            assert executor not in self.jobs
            self.check_begin(job)
            self.jobs[executor] = job
        return job is not None or bool(results)

    @rule()
    def stage(self) -> None:
        job = self.core.stage(self.now_ns)
        if job is None:
            return
        self.check_begin(msgspec.structs.replace(job, begin_ns=self.now_ns))
        assert isinstance(self.jobs[Executor.EXEC].action, Infer), "staged behind nothing that runs"
        assert self.core.staged is job.action
        self.staged = job

    @rule()
    def unstage(self) -> None:
        self.core.unstage()
        self.staged = self.staged if self.committed else None

    @precondition(lambda self: self.staged is not None)
    @rule()
    def commit(self) -> None:
        """The device is given the staged Infer: nothing takes it back."""
        self.core.commit()
        self.committed = True

    def go_on(self) -> None:
        """The device has begun what is committed, be it too late, and whatever came first meanwhile."""
        job = self.staged
        assert job is not None
        assert not self.core.quiet
        begun = self.core.begin_staged(self.now_ns)
        assert begun == msgspec.structs.replace(job, begin_ns=self.now_ns)
        assert self.core.running(Executor.EXEC) is begun
        assert begun.model.name in [each.model for each in self.core.residency.resident()]
        self.jobs[Executor.EXEC] = begun
        self.staged, self.committed = None, False

    @rule()
    def refuse_late(self) -> None:
        """The driver looks for what can't begin any more."""
        staged = self.core.staged
        if staged is not None and staged.latest_ns < self.now_ns:
            self.unstage()
        self.settle(self.core.expire(self.now_ns))

    @precondition(lambda self: self.staged is not None and not self.committed)
    @rule(succeeded=st.booleans())
    def turn(self, succeeded: bool) -> None:
        """EXEC goes on to the staged Infer, unless that is too late or no longer the first."""
        job = self.staged
        assert job is not None
        assert isinstance(job.action, Infer)
        if self.core.outranked:
            self.unstage()
            return
        in_time = job.action.earliest_ns <= self.now_ns <= job.action.latest_ns
        self.finish(Executor.EXEC, succeeded)
        if not in_time:
            with pytest.raises(ValueError, match="outside the window"):
                self.core.begin_staged(self.now_ns)
            self.begin(Executor.EXEC)
            return
        assert not self.core.quiet
        job = msgspec.structs.replace(job, begin_ns=self.now_ns)
        self.check_begin(job)
        self.core.begin_staged(self.now_ns)
        assert self.core.running(Executor.EXEC) == job
        self.jobs[Executor.EXEC] = job
        self.staged = None

    def check_begin(self, job: Job) -> None:
        action = self.waiting[job.action.action_id]
        assert action is job.action
        assert job.begin_ns == self.now_ns
        if isinstance(action, Infer | Load | Open):
            assert action.earliest_ns <= self.now_ns <= action.latest_ns
            ahead = [
                other
                for other in self.waiting.values()
                if type(other) is type(action)
                and (other.earliest_ns, other.action_id) < (action.earliest_ns, action.action_id)
            ]
            assert not ahead, f"{action} began before {ahead}"
        if isinstance(action, Infer):
            assert all((action.action_id, request_id) in self.inputs for request_id in action.request_ids)
            assert action.model in [each.model for each in self.core.residency.resident()]

    @rule()
    def leave_closed(self) -> None:
        self.finish(Executor.PREPARE, False, Status.NOT_OPEN)

    @rule(executor=EXECUTORS, succeeded=st.booleans())
    def finish(self, executor: Executor, succeeded: bool, otherwise: Status = Status.ENGINE_ERROR) -> None:
        job = self.jobs.pop(executor, None)
        if job is None:
            return
        status = Status.OK if succeeded else otherwise
        before = (self.core.residency.resident(), self.core.residency.prepared())
        action_id = job.action.action_id
        result = self.core.finish(executor, action_id, job.begin_ns, self.now_ns, status=status)
        if succeeded and job.io is not None:
            self.unsent.append(job.io.slot)
        if not succeeded:
            assert before == (self.core.residency.resident(), self.core.residency.prepared())
        if action_id in self.waiting:
            assert result is not None
            assert (result.status, result.begin_ns, result.end_ns) == (status, job.begin_ns, self.now_ns)
            del self.waiting[action_id]
        else:
            assert result is None, "an abandoned action has a result"
        if executor is Executor.EXEC and self.committed:
            self.go_on()

    @precondition(lambda self: self.unsent)
    @rule()
    def send_outputs(self) -> None:
        self.core.outputs_sent(self.unsent.pop(0))

    @rule()
    def abandon(self) -> None:
        self.unstage()
        forgotten = self.core.abandon()
        running = [job.action.action_id for job in self.jobs.values()]
        if self.committed and self.staged is not None:
            running.append(self.staged.action.action_id)
        assert sorted(self.waiting) == sorted(forgotten + [key for key in running if key in self.waiting])
        self.waiting.clear()

    @invariant()
    def holds(self) -> None:
        self.core.validate()
        assert self.core.committed is self.committed
        staged = None if self.staged is None or self.committed else self.staged.action
        assert self.core.staged is staged

    def teardown(self) -> None:
        """Whatever happened, each action that was not abandoned ends, and nothing is left over."""
        self.unstage()
        for executor in Executor:
            while executor in self.jobs:
                self.finish(executor, True)
        self.now_ns += 10_000
        for executor in Executor:
            while self.begin(executor):
                self.finish(executor, False)
        assert not self.waiting, f"no result: {self.waiting}"
        while self.unsent:
            self.send_outputs()
        assert self.core.io.slots == 0
        self.core.validate()


Worker.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestWorker = Worker.TestCase
