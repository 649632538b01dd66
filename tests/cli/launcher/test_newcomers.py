"""A cluster of real processes whose device does nothing else while it opens an executable."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.messages.actions import Infer, Open, Result
from mainspring.messages.codes import Status
from mainspring.telemetry.log import read_log
from tests.patience import PATIENCE_S

INPUT = {"data": np.zeros((1, 1000), np.float32)}
SLO_MS = 5000


def test_a_new_architecture_makes_no_infer_late(emulated: Callable[..., Config], tmp_path: Path) -> None:
    config = emulated(workers=1)
    worker = msgspec.structs.replace(config.worker, emulated_open_ms=300.0)
    with (
        LocalCluster(make_plan(msgspec.structs.replace(config, worker=worker)), print) as cluster,
        Client(cluster.address) as client,
    ):
        known = client.models()["quick-1"]
        newcomer = msgspec.structs.replace(known, name="newcomer", weights_hash="new", executable="new")
        futures = []
        for number in range(150):
            futures.append(client.submit("quick-1", INPUT, slo_ms=SLO_MS))
            if number == 50:
                client.add_model(newcomer)
            time.sleep(0.01)
        for future in futures:
            assert "output" in future.result(PATIENCE_S)
        # Without a deadline it waits until the model is prepared.
        assert "output" in client.infer("newcomer", INPUT, slo_ms=None)
    entries = [entry for _, entry in read_log(tmp_path / "run" / "events")]
    results = {entry.action_id: entry for entry in entries if isinstance(entry, Result)}
    opens = [results[entry.action_id] for entry in entries if isinstance(entry, Open)]
    infers = [entry for entry in entries if isinstance(entry, Infer)]
    assert any(entry.model == "newcomer" for entry in entries if isinstance(entry, Open))
    # Where the host stood still one may have come too late, but none because of an OPEN.
    late = [each for each in infers if results[each.action_id].status is not Status.OK]
    assert {results[each.action_id].status for each in late} <= {Status.TOO_LATE}
    for opened in opens:
        assert not [each for each in late if opened.begin_ns <= each.latest_ns <= opened.end_ns]
        ran = [results[each.action_id] for each in infers if each not in late]
        assert all(each.end_ns <= opened.begin_ns or opened.end_ns <= each.begin_ns for each in ran)
