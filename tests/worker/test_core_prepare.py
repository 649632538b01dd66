"""Which models the worker's core counts as prepared, and which it will not prepare at all."""

from __future__ import annotations

import msgspec

from mainspring.messages.actions import Prepare
from mainspring.messages.codes import Status
from mainspring.worker.jobs import Executor
from tests.worker.peers import spec
from tests.worker.test_core import begun, ended, new_core

PREPARE = Executor.PREPARE


def test_a_model_whose_largest_batch_is_larger_than_the_io_memory_is_not_prepared() -> None:
    core = new_core(io_bytes=128)
    [result] = core.submit(0, Prepare(2, "w", spec(floats=9)))
    assert result.status is Status.NO_IO_MEMORY
    assert result.detail == (
        "inputs and outputs of a batch of 4 of m have 256 bytes, the worker's io_bytes is 128: "
        "set it higher, or compile the model with smaller --batch-sizes"
    )
    assert core.submit(0, Prepare(3, "w", spec(floats=4))) == []


def test_a_model_whose_prepare_was_abandoned_does_not_stand_in_the_way_of_its_next_artifact() -> None:
    core = new_core()
    core.submit(0, Prepare(1, "w", spec()))
    begun(core, PREPARE, 0)
    core.abandon()
    assert core.quiet, "a hello need not wait for it"
    changed = msgspec.structs.replace(spec(), weights_hash="other weights")
    assert core.submit(1, Prepare(1, "w", changed)) == []
    assert core.finish(PREPARE, 1, 0, 2) is None
    core.validate()
    assert core.holdings.prepared() == {}
    ended(core, PREPARE, begun(core, PREPARE, 2), 3)
    assert core.holdings.prepared() == {"m": changed.artifact}
