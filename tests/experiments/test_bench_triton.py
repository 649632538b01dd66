"""The comparison with Triton: its client, its figures, and what it does where Triton can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import typer
from tritonclient.grpc import service_pb2

from mainspring.experiments.bench import foreign
from mainspring.experiments.bench.triton import compare, contestants, load
from mainspring.experiments.bench.triton.contestants import Subject
from tests.gateway.fakes import fake_cluster, serving, wait_until

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_a_request_is_what_triton_s_client_would_send() -> None:
    message = service_pb2.ModelInferRequest.FromString(load.encode("m", {"data": X}, 25_000))
    assert message.model_name == "m"
    assert message.parameters["timeout"].int64_param == 25_000
    assert list(message.raw_input_contents) == [X.tobytes()]
    assert "timeout" not in service_pb2.ModelInferRequest.FromString(load.encode("m", {"data": X})).parameters


def test_both_loops_count_answers_and_refusals() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, grpc_address="grpc://127.0.0.1:0") as served,
    ):
        wait_until(lambda: cluster.hellos)
        address = served.grpc.removeprefix("grpc://")
        requests = [load.encode("double", {"data": X}), load.encode("reject", {"data": X})]

        def answered() -> bool:
            found = load.open_loop(address, requests, np.linspace(0, 0.04, 20))
            return found.codes == {"OK": 10, "DEADLINE_EXCEEDED": 10}

        wait_until(answered, 30)
        found = load.open_loop(address, requests, np.linspace(0, 0.04, 20))
        assert found.in_time(60_000) == 10
        assert list(found.reasons.values()) == [10]
        assert len(found.refused_ms) == 10
        assert min(found.refused_ms) > 0
        assert found.begin_ns > 0
        assert found.in_time(0) == 0
        assert load.closed_loop(address, requests[:1], 4, 0.3) > 0


def test_without_triton_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> Any:
        raise foreign.Unavailable("there is no wheel of it for this machine")

    monkeypatch.setattr(compare, "contest", missing)
    compare.main(copies="1", factors="1.0", repeats=1)
    assert "skipped: there is no wheel of it" in capsys.readouterr().out


def test_figures_say_how_much_was_late_and_when_refusals_came() -> None:
    def turn(server: str, late: int, refused_at: list[float]) -> compare.Turn:
        return compare.Turn(server, 1, 0.5, 70.0, 100, 90.0, {}, 0.1, late=late, refused_at=refused_at)

    turns = [
        turn("mainspring", 2, [0.1, 0.2, 0.3]),
        turn("mainspring", 0, [0.4, 0.5]),
        turn("triton", 9, []),
    ]
    subject = Subject(lambda _path, _copies: [], lambda _specs: {}, list, 22.0, {0.5: 98.0})
    rows = {figure.name: figure for figure in compare.figures(turns, subject)}
    late = rows["1 x, 0.5: mainspring late"]
    assert (late.value, late.met) == (1.0, False)
    assert rows["1 x, 0.5: triton late"].value == 9
    assert rows["1 x, 0.5: triton late"].target is None
    assert rows["1 x, 0.5: mainspring refuses, median"].value == pytest.approx(0.3)
    assert "1 x, 0.5: triton refuses, median" not in rows
    assert rows["1 x, 0.5 of Triton's saturation: mainspring in time"].target == 98


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a client beside a server needs a second core")
def test_what_is_started_on_the_last_core_stays_there_while_the_client_leaves() -> None:
    cores = os.sched_getaffinity(0)
    with contestants.on_last_core() as leave:
        server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        leave()
        assert os.sched_getaffinity(server.pid) == {max(cores)}
        assert os.sched_getaffinity(0) == cores - {max(cores)}
        server.communicate(b"\n")
    assert os.sched_getaffinity(0) == cores


def test_a_saturation_counts_once_its_turns_agree() -> None:
    assert compare.settled([100, 104, 98, 101, 103])
    assert compare.settled([100, 104, 98, 101, 300]), "one pause of the host is no matter"
    assert not compare.settled([116, 208, 120, 200, 205])


def test_settings_of_a_further_cluster_are_toml() -> None:
    assert contestants.settings("") == {}
    found = contestants.settings("scheduler.estimate_rank=5,worker.pages=9,gateway.slab_bytes=0")
    assert found == {"scheduler": {"estimate_rank": 5}, "worker": {"pages": 9}, "gateway": {"slab_bytes": 0}}
    assert contestants.settings("scheduler.policy=fifo") == {"scheduler": {"policy": "fifo"}}
    for wrong in ("estimate_rank=5", "scheduler.estimate_rank", "=1"):
        with pytest.raises(typer.BadParameter, match="is not a setting"):
            contestants.settings(wrong)
