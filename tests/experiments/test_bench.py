from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring.experiments.bench import relay
from mainspring.experiments.bench.path import STAGES, split
from mainspring.experiments.bench.report import Figure, publish
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import EventLogWriter


@pytest.mark.parametrize("framed", [False, True])
def test_the_relay_passes_a_tensor_through_all_its_processes(framed: bool) -> None:
    with relay.running(output_bytes=1000, framed=framed) as bare:
        bare.send(bytes(4000))
        bare.receive()
        bare.send(bytes(10))
        bare.send(bytes(20))
        bare.receive()
        bare.receive()


def test_the_stages_add_up_to_what_the_client_saw_less_exec(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path)
    ms = 1_000_000
    infer = Infer(7, "w", "m", 1, (1,), (1,), (False,), 12 * ms, 99 * ms, 12 * ms, ms)
    log.append(10 * ms, RequestArrived(1, "m", 1, None))
    log.append(12 * ms, infer)
    log.append(30 * ms, Result(7, "w", Status.OK, 15 * ms, 20 * ms, device_ns=4 * ms))
    log.close()
    stages = split(tmp_path, [9 * ms], [26 * ms])
    assert stages.tolist() == [[1, 2, 3, 1, 6]]
    assert len(STAGES) == 5
    assert stages.sum() == (26 - 9) - 4
    with pytest.raises(ValueError, match="no arrival"):
        split(tmp_path, [40 * ms], [41 * ms])


def test_a_report_says_whether_targets_were_met(tmp_path: Path) -> None:
    figures = [Figure("a", 1, "ms", 2), Figure("b", 1, "x", 2, at_least=True), Figure("c", 1, "s")]
    assert [figure.met for figure in figures] == [True, False, None]
    path = publish("name", "Title", figures, tmp_path, trials=[1])
    told = json.loads(path.read_text())
    assert told["figures"][1]["target"] == 2
    assert told["trials"] == [1]
    assert told["machine"]["cores"] >= 1
