"""What the check `device` tells of reading a GPU's state."""

from __future__ import annotations

import pytest

from mainspring.experiments.gpu_check.executing import READINGS, of_readings
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.worker.engines.cuda.nvml import NvmlMissing
from mainspring.worker.engines.cuda.state import GpuState
from tests.worker.engines.cuda.test_state import GOOD


class Reads:
    """A reader that counts; it fails if it is said so."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.count = 0
        self.closed = False

    def read(self) -> GpuState:
        self.count += 1
        if self.fails:
            raise NvmlMissing("GPU is lost")
        return GOOD

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("fails", [False, True])
def test_a_reading_of_the_state_is_timed_as_a_worker_does_it(fails: bool) -> None:
    reader = Reads(fails)
    (verdict,) = of_readings(reader)
    assert reader.closed
    if fails:
        assert (verdict.state, verdict.found) == (State.NOT_RUN, "GPU is lost")
        return
    assert reader.count == READINGS
    assert verdict.state is State.TOLD
    assert verdict.found.endswith(" us")
    assert "once a second" in verdict.note


def test_where_nvml_can_not_be_used_it_is_said() -> None:
    (verdict,) = of_readings(None)
    assert verdict.state is State.NOT_RUN
