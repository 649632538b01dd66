"""Actions that wait behind a job which takes longer than their windows allow."""

from __future__ import annotations

import os
import time

from mainspring.messages.codes import Status
from mainspring.worker.executors import EXPIRY_MS
from mainspring.worker.jobs import Executor
from tests.worker.peers import MS, infer, load
from tests.worker.test_core import EXEC, begun, ended, resident_core, statuses
from tests.worker.test_network import HandWorker


def test_what_a_running_job_keeps_too_long_can_be_told_before_it_ends() -> None:
    core = resident_core()
    for action_id, latest_ns in ((1, 1000), (2, 1000), (3, 3000)):
        core.submit(0, infer(action_id, window=(0, latest_ns)))
        core.input_arrived(action_id, 1)
    core.submit(0, load(4, (3,), "o", window=(0, 500)))
    job = begun(core, EXEC, 0)
    assert core.expire(1000) == []
    assert statuses(core.expire(1001)) == [(2, Status.TOO_LATE)], "of LOAD nothing runs: `begin` says it"
    core.validate()
    assert core.expire(1001) == []
    ended(core, EXEC, job, 2000)
    assert begun(core, EXEC, 2000).action.action_id == 3


def test_what_a_job_keeps_too_long_is_told_while_the_job_still_runs() -> None:
    worker = HandWorker()
    now_ns = time.monotonic_ns()
    worker.say(infer(10, (100,)))
    worker.push(10, 100, 1.0)
    job = worker.begin(Executor.EXEC)
    assert job is not None
    worker.say(infer(11, (200,), window=(now_ns - 2 * MS, now_ns - MS)))
    worker.push(11, 200, 2.0)
    assert worker.executors.expire(50) == EXPIRY_MS, "to be asked for again soon"
    assert os.eventfd_read(worker.outbox.bell) == 1, "the network thread has something to send"
    worker.network.flush()
    assert [(result.action_id, result.status) for result in worker.results[2:]] == [(11, Status.TOO_LATE)]
    worker.push(11, 200, 2.0)
    assert worker.network.dropped == {"gateway: input without action": 1}
    worker.core.finish(Executor.EXEC, 10, job.begin_ns, time.monotonic_ns())
    assert worker.executors.expire(50) == 50, "nothing waits for its end while nothing runs"
