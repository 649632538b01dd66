"""When memory is given back, and that a worker is offered a new slab for it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mainspring.gateway import server as reclaiming
from mainspring.gateway.memory import Memory
from mainspring.gateway.server import IDLE_NS, WORTH_BYTES, Reclaiming


@pytest.mark.parametrize(("shared", "renewed"), [(WORTH_BYTES, 1), (WORTH_BYTES - 1, 0)])
def test_it_is_given_back_once_for_each_time_that_nothing_comes(shared: int, renewed: int) -> None:
    done = {"renewed": 0, "trimmed": 0}

    def note(what: str) -> None:
        done[what] += 1

    one = Reclaiming(lambda: shared, lambda: note("renewed"), lambda: note("trimmed"))
    one.consider(IDLE_NS, asked=0, in_flight=0)
    assert done == {"renewed": 0, "trimmed": 0}, "nothing was needed yet"
    for round_ in (1, 2):
        now_ns = round_ * 10 * IDLE_NS
        one.consider(now_ns, asked=round_, in_flight=1)
        one.consider(now_ns + 2 * IDLE_NS, asked=round_, in_flight=1)
        one.consider(now_ns + 3 * IDLE_NS - 1, asked=round_, in_flight=0)
        assert done["trimmed"] == round_ - 1
        for later in range(3):
            one.consider(now_ns + (3 + later) * IDLE_NS, asked=round_, in_flight=0)
        assert done == {"renewed": round_ * renewed, "trimmed": round_}


def test_a_renewed_slab_gives_its_pages_back() -> None:
    before = reclaiming.shared_bytes()
    memory = Memory(64 << 20)
    held = [memory.take(8 << 20) for _ in range(4)]
    for each in held:
        np.frombuffer(each, np.uint8)[:] = 7
    assert reclaiming.shared_bytes() - before >= 32 << 20
    del held[1:], each
    memory.renew()
    assert bytes(held[0][:3]) == b"\x07\x07\x07", "what is still referred to stays as it is"
    assert memory.find(held[0]) is None
    place = memory.take(8 << 20)
    assert memory.find(place) is not None
    del held
    assert reclaiming.shared_bytes() - before < 16 << 20
    assert os.fstat(memory.descriptor).st_size == 64 << 20
    memory.close()
