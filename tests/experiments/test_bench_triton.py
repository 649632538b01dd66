"""The comparison with Triton: its client, its figures, and what it does where Triton can't be had."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from mainspring.experiments.bench import foreign
from mainspring.experiments.bench.triton import compare, load
from mainspring.experiments.bench.triton.compare import Turn
from tests.gateway.fakes import fake_cluster, serving, wait_until

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_a_request_is_what_triton_s_client_would_send() -> None:
    message = service_pb2.ModelInferRequest.FromString(load.encode("m", "data", X, 25_000))
    assert message.model_name == "m"
    assert message.parameters["timeout"].int64_param == 25_000
    assert list(message.raw_input_contents) == [X.tobytes()]
    assert "timeout" not in service_pb2.ModelInferRequest.FromString(load.encode("m", "data", X)).parameters


def test_arrivals_have_the_rate_that_was_asked_for_and_no_rhythm() -> None:
    instants = load.poisson(200.0, 50.0, 1)
    assert len(instants) == pytest.approx(10_000, rel=0.05)
    gaps = np.diff(instants)
    assert gaps.min() > 0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert np.array_equal(instants, load.poisson(200.0, 50.0, 1))
    assert not np.array_equal(instants, load.poisson(200.0, 50.0, 2))


def test_both_loops_count_answers_and_refusals() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, grpc_address="grpc://127.0.0.1:0") as served,
    ):
        wait_until(lambda: cluster.hellos)
        address = served.grpc.removeprefix("grpc://")
        requests = [load.encode("double", "data", X), load.encode("reject", "data", X)]

        def answered() -> bool:
            found = load.open_loop(address, requests, np.linspace(0, 0.04, 20))
            return found.codes == {"OK": 10, "DEADLINE_EXCEEDED": 10}

        wait_until(answered, 30)
        found = load.open_loop(address, requests, np.linspace(0, 0.04, 20))
        assert found.in_time(60_000) == 10
        assert list(found.reasons.values()) == [10]
        assert found.begin_ns > 0
        assert found.in_time(0) == 0
        assert load.closed_loop(address, requests[:1], 4, 0.3) > 0


def turn(server: str, percent: float, factor: float = 1.0, hit_percent: float = 0.0) -> Turn:
    return Turn(
        server, 1, factor, 100.0, 50, percent, {}, 0.0, hit_percent=hit_percent, possible_percent=70.0
    )


def test_figures_are_medians_and_only_mainspring_s_have_a_target() -> None:
    turns = [turn("triton", 40), turn("mainspring", 90)]
    turns += [turn("mainspring", 98, hit_percent=1.0), turn("mainspring", 99, hit_percent=3.0)]
    triton, mainspring, pauses, could = compare.figures(turns)
    assert (triton.value, triton.target) == (40, None)
    assert (mainspring.value, mainspring.target, mainspring.met) == (98, 97.0, True)
    assert "90.0 to 99.0 of 3 turns" in mainspring.note
    assert (pauses.value, pauses.target) == (0.5, None)
    assert (could.value, could.target) == (70.0, None)


def test_durations_of_the_bare_model_are_told_in_a_line() -> None:
    line = compare._bare_line([*np.linspace(1.0, 2.0, 101), 90.0])
    assert line == "the bare model, 102 runs: p5 1.1, p50 1.5, p95 2.0, p99 2.0, longest 90.0 ms"


def test_without_triton_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> Any:
        raise foreign.Unavailable("there is no wheel of it for this machine")

    monkeypatch.setattr(compare, "contest", missing)
    compare.main(copies="1", factors="1.0", repeats=1)
    assert "skipped: there is no wheel of it" in capsys.readouterr().out


def test_a_command_that_fails_says_its_last_words() -> None:
    with pytest.raises(foreign.Unavailable, match="it can't be made: no such thing"):
        foreign.call(["sh", "-c", "echo no such thing >&2; exit 3"], "it can't be made")
    with pytest.raises(foreign.Unavailable, match="nothing-of-this-name"):
        foreign.call(["nothing-of-this-name"], "it can't be made")


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def pretend(command: list[str], _otherwise: str, _folder: Path | None = None) -> None:
        calls.append(command)
        (tmp_path / "tool").mkdir(exist_ok=True)

    monkeypatch.setattr(foreign, "CACHE", tmp_path)
    monkeypatch.setattr(foreign, "call", pretend)
    for _ in range(2):
        assert foreign.environment("tool", ("one==1",), dependencies=False) == tmp_path / "tool"
    assert len(calls) == 2
    assert calls[1][-2:] == ["--no-deps", "one==1"]
    foreign.environment("tool", ("one==2",))
    assert len(calls) == 4


def test_shared_libraries_are_found(tmp_path: Path) -> None:
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "libx.so.1").touch()
    variables = foreign.libraries(tmp_path)
    said = subprocess.run(
        ["sh", "-c", "echo $LD_LIBRARY_PATH"], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert said.split(":")[0].strip() == str(tmp_path / "usr" / "lib")
