"""``mainspring explain`` on recorded logs, and what it says where it can't tell."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.controller.logged_scheduler import about
from mainspring.messages.actions import Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import ModelAdded, QueryArrived, RequestArrived
from mainspring.messages.queries import QueryStep
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.scenario import random_scenario, run_to_end
from mainspring.telemetry.log import EventLogWriter, read_log
from tests.scheduler.hand import spec

SEED = 0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    records: list[tuple[int, object]] = []
    simulation = random_scenario(
        SEED, "mainspring", record=lambda now_ns, entry: records.append((now_ns, entry))
    )
    run_to_end(simulation)
    writer = EventLogWriter(folder, about=about(simulation.scheduler.config))
    for now_ns, entry in records:
        writer.append(now_ns, entry)  # type: ignore[arg-type]
    writer.close()
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["explain", *arguments], env={"COLUMNS": "200"})
    return (
        result.exit_code,
        result.output if result.exception is None else f"{result.output}{result.exception}",
    )


def test_the_last_rejected_request_is_explained(log: Path) -> None:
    last = [entry for _, entry in read_log(log) if isinstance(entry, Reject)][-1]
    code, text = run("last-rejected", "--log", str(log))
    assert code == 0
    assert text.startswith(f"request {last.request_id} for m")
    assert last.reason.value in text
    assert "What each worker could have done" in text


def test_an_id_or_its_beginning_names_a_request(log: Path) -> None:
    ids = [entry.request_id for _, entry in read_log(log) if isinstance(entry, RequestArrived)]
    code, text = run(str(ids[40]), "--log", str(log), "--json")
    assert code == 0
    story = json.loads(text)
    assert story["id"] == str(ids[40])
    assert story["steps"][0]["what"] == "arrived"
    code, text = run("99999999", "--log", str(log))
    assert code == 1
    assert "no request of run 1 has the id 99999999" in text
    code, text = run("0", "--log", str(log))
    assert code == 1


def test_several_requests_that_begin_alike_are_named(log: Path, tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path, about={})
    writer.append(7000, ModelAdded(spec("m")))
    for request_id in (7100, 7101, 7200):
        writer.append(request_id, RequestArrived(request_id, "m", 1, None))
    writer.close()
    code, text = run("71", "--log", str(tmp_path))
    assert code == 1
    assert "2 requests' ids begin with 71: 7100, 7101" in text
    code, text = run("72", "--log", str(tmp_path))
    assert code == 0
    assert text.startswith("request 7200 for m: waiting")


def test_words_that_name_no_request_are_refused(log: Path) -> None:
    code, text = run("yesterday", "--log", str(log))
    assert code == 1
    assert "'yesterday' is not a request's id" in text
    assert "last-rejected" in text


@pytest.mark.parametrize(
    ("word", "meant"), [("last-refused", "last-rejected"), ("lastlate", "last-late"), ("7" * 21, "")]
)
def test_they_are_refused_before_a_cluster_is_looked_for(word: str, meant: str) -> None:
    code, text = run(word, "--controller", "tcp://127.0.0.1:1", "--wait", "1h")
    assert code == 1
    assert f"'{word}' is not a request's id" in text
    assert not meant or f"did you mean '{meant}'?" in text


def test_two_places_to_look_in_are_one_too_many(log: Path) -> None:
    code, text = run("1", "--log", str(log), "--controller", "tcp://127.0.0.1:1")
    assert code == 2
    assert "give one of them" in text
    code, text = run("1", "--run", "1")
    assert code == 2
    assert "give --log DIR too" in text


def test_without_console_and_controller_it_says_so() -> None:
    with socket.socket() as taken:
        # Bound and not listened to: nobody else gets it, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        _nobody_answers(f"127.0.0.1:{taken.getsockname()[1]}")


def _nobody_answers(nowhere: str) -> None:
    code, text = run("1", "--console", f"http://{nowhere}")
    assert code == 1
    assert f"no console answers at http://{nowhere}" in text
    code, text = run("1", "--controller", f"tcp://{nowhere}", "--wait", "300ms")
    assert code == 1
    assert f"no controller answers at tcp://{nowhere}" in text


def test_a_query_is_explained_by_its_own_id(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path, about=about(SchedulerConfig()))
    steps = (QueryStep("m", 1, name="find"),)
    for now_ns, entry in enumerate(
        [
            ModelAdded(spec("m")),
            QueryArrived(700, 10**9, steps, graph="text"),
            RequestArrived(55, "m", 1, 10**9, query=700),
            Reject(55, Reason.DEADLINE_PASSED, "late"),
            QueryArrived(701, 10**9, steps, graph="text"),
            Reject(701, Reason.DEADLINE_UNREACHABLE, "no worker could"),
        ],
        1,
    ):
        writer.append(now_ns, entry)  # type: ignore[arg-type]
    writer.close()
    code, text = run("700", "--log", str(tmp_path))
    assert code == 0, text
    assert "Graph 'text', 1 steps: 1 pieces" in text
    assert "step text.find (model m), request 55, 1 rows: rejected" in text
    code, text = run("701", "--log", str(tmp_path))
    assert code == 0, text
    assert "for graph 'text', 1 row" in text
