"""When an INFER's inputs were in place, as its result says."""

from mainspring.worker.jobs import Executor
from tests.worker.peers import infer
from tests.worker.test_core import begun, resident_core

EXEC = Executor.EXEC


def test_a_result_says_when_the_last_input_was_in_place() -> None:
    core = resident_core()
    core.submit(0, infer(1, (7, 8), window=(10, 90)))
    core.input_arrived(1, 8, 12)
    core.input_arrived(1, 7, 15)
    job = begun(core, EXEC, 20)
    result = core.finish(EXEC, 1, job.begin_ns, 30)
    assert result is not None
    assert result.inputs_ns == 15
    core.submit(30, infer(2, (7, 8), window=(30, 90)))
    core.input_arrived(2, 7, 40)
    assert [each.inputs_ns for each in core.begin(EXEC, 91).results] == [0], "one had not come"
    core.submit(91, infer(3, (7, 8), window=(91, 200)))
    refused = core.input_refused(95, 3, 7, "it has 3 bytes")
    assert refused is not None
    assert refused.inputs_ns == 95
