"""A trace keeps the rules of the format, as strictly as both of its readers take them."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.console.perfetto import TraceFile, Tracer
from mainspring.messages.actions import Action, Infer, Load
from mainspring.messages.events import (
    ModelAdded,
    QueryArrived,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
)
from mainspring.messages.model import ModelSpec
from mainspring.messages.queries import QueryStep
from mainspring.telemetry.lifecycles import Lifecycles
from mainspring.telemetry.log import read_log
from mainspring.telemetry.runs import choose_run
from tests.gateway.fakes import make_spec
from tests.telemetry.recordings import record

SECOND = 1_000_000_000
NEEDED = {
    "M": {"pid", "name", "args"},
    "X": {"pid", "tid", "name", "cat", "ts", "dur", "args"},
    "b": {"pid", "tid", "name", "cat", "id", "ts", "args"},
    "e": {"pid", "tid", "name", "cat", "id", "ts"},
    "s": {"pid", "tid", "name", "cat", "id", "ts"},
    "f": {"pid", "tid", "name", "cat", "id", "ts", "bp"},
    "C": {"pid", "tid", "name", "ts", "args"},
}
"""Each phase that is used, and exactly what its events have."""

Event = dict[str, Any]


def ns(microseconds: float) -> int:
    """Turn an instant back as Perfetto does: by truncating the floating-point product."""
    return int(microseconds * 1000.0)


class Trace:
    """A trace that keeps every rule; raises AssertionError if it does not."""

    def __init__(self, path: Path) -> None:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        self.about = json.loads(data)["otherData"]
        self.events: list[Event] = json.loads(data)["traceEvents"]
        self.by_phase: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            threads = {"tid"} if event["name"].startswith("thread_") else set()
            assert set(event) == NEEDED[event["ph"]] | {"ph"} | threads, event
            assert event.get("ts", 0) >= 0, event
            self.by_phase[event["ph"]].append(event)
        self.names = self._names()
        self.slices = self._slices()
        self._check_spans()
        self.flows = self._flows()
        for counter in self.by_phase["C"]:
            assert all(isinstance(value, int) and value >= 0 for value in counter["args"].values())

    def _names(self) -> dict[tuple[int, int | None], str]:
        """Every process and thread is named once, and a thread's id is of one process only."""
        found: dict[tuple[int, int | None], str] = {}
        for event in self.by_phase["M"]:
            if event["name"] in ("process_name", "thread_name"):
                key = (event["pid"], event.get("tid"))
                assert key not in found, f"named twice: {event}"
                found[key] = event["args"]["name"]
        tids = Counter(tid for _, tid in found if tid is not None)
        assert max(tids.values()) == 1
        for event in self.events:
            if event["ph"] != "M":
                assert (event["pid"], None) in found, event
                assert (event["pid"], event["tid"]) in found, event
        return found

    def _slices(self) -> dict[tuple[int, int], list[tuple[int, int, Event]]]:
        """Slices of one thread come one after the other, also where a reader truncates."""
        found: dict[tuple[int, int], list[tuple[int, int, Event]]] = defaultdict(list)
        for event in self.by_phase["X"]:
            begin_ns = ns(event["ts"])
            found[event["pid"], event["tid"]].append((begin_ns, begin_ns + ns(event["dur"]), event))
        for lane in found.values():
            lane.sort(key=lambda each: each[:2])
            for before, after in pairwise(lane):
                assert before[1] <= after[0], f"{before} reaches into {after}"
            assert all(begin_ns < end_ns for begin_ns, end_ns, _ in lane)
        return found

    def _check_spans(self) -> None:
        begun = {(event["cat"], event["id"]): event for event in self.by_phase["b"]}
        ended = {(event["cat"], event["id"]): event for event in self.by_phase["e"]}
        assert len(begun) == len(self.by_phase["b"]), "an id stands for two spans of one category"
        assert len(ended) == len(self.by_phase["e"])
        assert begun.keys() == ended.keys()
        for key, event in begun.items():
            end = ended[key]
            assert (event["pid"], event["tid"], event["name"]) == (end["pid"], end["tid"], end["name"])
            assert event["ts"] <= end["ts"]

    def _flows(self) -> list[tuple[Event, Event]]:
        """Each arrow has a begin and an end, both inside a slice; return the slices."""
        begins = {event["id"]: event for event in self.by_phase["s"]}
        ends = {event["id"]: event for event in self.by_phase["f"]}
        assert len(begins) == len(self.by_phase["s"]) == len(ends) == len(self.by_phase["f"])
        assert begins.keys() == ends.keys()
        found = []
        for id_, begin in begins.items():
            end = ends[id_]
            assert (begin["cat"], begin["name"]) == (end["cat"], end["name"])
            assert end["bp"] == "e"
            found.append((self._around(begin), self._around(end)))
        return found

    def _around(self, event: Event) -> Event:
        at_ns = ns(event["ts"])
        lane = self.slices[event["pid"], event["tid"]]
        (around,) = [each for each in lane if each[0] <= at_ns < each[1]]
        return around[2]

    def lane(self, event: Event) -> str:
        return self.names[event["pid"], event["tid"]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def whole(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return Trace(written(log, tmp_path_factory.mktemp("trace") / "run.json"))


def written(log: Path, output: Path, *options: str) -> Path:
    found = CliRunner().invoke(build_app(), ["trace", "--log", str(log), "--perfetto", str(output), *options])
    assert found.exit_code == 0, found.output
    assert str(output) in found.output
    return output


def test_every_request_is_a_span_named_after_its_outcome(log: Path, whole: Trace) -> None:
    outcomes: Counter[str] = Counter()
    lives = Lifecycles(lambda life: outcomes.update([life.outcome]))
    for now_ns, entry in read_log(log):
        lives.take(now_ns, entry)
    spans = [event for event in whole.by_phase["b"] if event["cat"] == "request"]
    named = Counter(event["name"].split(":")[0].replace(" ", "_") for event in spans)
    assert named == outcomes
    assert "rejected: deadline_passed" in {event["name"] for event in spans}
    rejected = next(event for event in spans if event["name"].startswith("rejected"))
    assert rejected["args"]["detail"]
    assert rejected["args"]["latency_ms"] > 0


def test_every_action_is_a_slice_on_its_executor(log: Path, whole: Trace) -> None:
    entries = [entry for _, entry in read_log(log)]
    slices = {event["args"]["action"]: event for event in whole.by_phase["X"] if event["cat"] != "arrival"}
    actions = [entry for entry in entries if isinstance(entry, Action)]
    assert slices.keys() == {entry.action_id for entry in actions}
    for entry in actions:
        event = slices[entry.action_id]
        assert whole.names[event["pid"], None] == f"{entry.worker} (gpu)"
        lane, status = whole.lane(event), event["args"]["status"]
        if isinstance(entry, Infer) and status == "ok":
            assert lane == "EXEC", "one EXEC at a time"
            assert event["name"] == entry.model
            assert event["args"]["predicted_duration_us"] == entry.predicted_duration_ns / 1e3
            assert event["args"]["infers_ahead"] >= 0
            planned = [
                event["args"].get(f"planned_{name}_us", 0) for name in ("exec_free", "inputs", "weights")
            ]
            sent_us = event["args"]["sent_before_predicted_begin_us"]
            assert max(planned) == pytest.approx(sent_us, abs=1e-6), "from the sending to the begin"
            error_us = event["args"]["duration_us"] - event["args"]["predicted_duration_us"]
            assert event["args"]["duration_error_us"] == pytest.approx(error_us, abs=1e-6)
        elif status == "lost":
            assert lane.startswith("NOT RUN")
        elif isinstance(entry, Load):
            assert lane == "LOAD"
            assert entry.evidence is not None
            assert event["args"]["reason"] == entry.evidence.reason
            assert event["args"].get("evicted", "").split() == list(entry.evidence.evicted)
    assert any("evicted" in event["args"] for event in slices.values()), "memory was short"


def test_windows_are_those_of_the_actions(log: Path, whole: Trace) -> None:
    first_ns = choose_run(log).first_ns
    windows = {int(event["id"], 16): event for event in whole.by_phase["b"] if event["cat"] == "window"}
    ends = {int(event["id"], 16): event for event in whole.by_phase["e"] if event["cat"] == "window"}
    actions = [entry for _, entry in read_log(log) if isinstance(entry, Infer | Load)]
    assert windows.keys() == {action.action_id for action in actions}
    for action in actions:
        assert ns(windows[action.action_id]["ts"]) == pytest.approx(action.earliest_ns - first_ns, abs=1)
        assert ns(ends[action.action_id]["ts"]) == pytest.approx(action.latest_ns - first_ns, abs=1)


def test_an_arrow_leads_from_each_request_to_each_of_its_infers(log: Path, whole: Trace) -> None:
    wanted = Counter(
        (str(request_id), entry.action_id)
        for _, entry in read_log(log)
        if isinstance(entry, Infer)
        for request_id in entry.request_ids
    )
    drawn = Counter((begin["args"]["request"], end["args"]["action"]) for begin, end in whole.flows)
    cancelled = {event["args"]["request"] for event in whole.by_phase["b"] if event["name"] == "cancelled"}
    assert drawn == Counter({key: count for key, count in wanted.items() if key[0] not in cancelled})
    assert max(drawn.values()) == 1
    for begin, end in whole.flows:
        assert begin["name"] == end["args"]["model"]
        assert (
            begin["args"]["request"] in end["args"]["requests"].split()
            or len(end["args"]["requests"].split()) == 16
        )


def test_counters_follow_queue_and_pages(log: Path, whole: Trace) -> None:
    workers = [event for event in whole.by_phase["C"] if event["name"] == "free"]
    assert len({event["pid"] for event in workers}) == 2
    assert {event["args"]["pages"] for event in workers} >= {3, 9, 15, 21}, "models have six pages each"
    waiting = [event["args"]["requests"] for event in whole.by_phase["C"] if event["name"] == "waiting"]
    assert max(waiting) > 5
    assert len(waiting) < 4_000, "at most one in a millisecond"


def test_a_part_is_cut_at_both_ends(log: Path, whole: Trace, tmp_path: Path) -> None:
    part = Trace(written(log, tmp_path / "part.json.gz", "--from", "1.2", "--to", "1.7"))
    assert part.about["policy"] == "clockwork"
    first_ns = choose_run(log).first_ns
    arrived = [
        str(entry.request_id)
        for now_ns, entry in read_log(log)
        if isinstance(entry, RequestArrived) and 1.2 * SECOND <= now_ns - first_ns < 1.7 * SECOND
    ]
    assert [event["args"]["request"] for event in part.by_phase["X"] if event["cat"] == "arrival"] == arrived
    assert "running" in {event["name"] for event in part.by_phase["b"]}
    planned = [event for event in part.by_phase["X"] if event["args"].get("status") == "outstanding"]
    assert planned
    assert all(event["name"].endswith(("(planned)", "(under way)")) for event in planned)
    lost = [event for event in part.by_phase["X"] if event["args"].get("status") == "lost"]
    assert len(lost) >= 3


def test_many_arrivals_at_one_instant_do_not_overlap(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "burst.json", {})
    tracer = Tracer(file)
    model = ModelSpec("m", "h", "e", (64,), 1, (1,), (), (), {})
    tracer.take(4_000, ModelAdded(model))
    tracer.take(4_000, WorkerJoined("w", "cpu", 8, {"m": model.artifact}))
    tracer.begin(5_000)
    for number in range(50):
        tracer.take(6_000, RequestArrived(number, "m", 1, None))
    ids = tuple(range(50))
    tracer.take(6_001, Infer(1, "w", "m", 64, ids, (1,) * 50, (True,) * 50, 6_001, 9_000, 6_500, 100_000))
    tracer.finish()
    file.close()
    trace = Trace(tmp_path / "burst.json")
    assert len(trace.flows) == 50
    assert {end["name"] for _, end in trace.flows} == {"m (planned)"}


def test_only_what_is_open_is_kept(log: Path, tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "run.json", {})
    tracer, lives = Tracer(file), Lifecycles()
    tracer.begin(choose_run(log).first_ns)
    most = 0
    for now_ns, entry in read_log(log):
        tracer.take(now_ns, entry)
        lives.take(now_ns, entry)
        assert set(tracer._arrivals) == set(lives.cluster.requests)
        most = max(most, len(tracer._arrivals))
    assert 10 < most < 200, "a run of 2,700 requests has few of them open at a time"
    file.abandon()


def test_nothing_is_there_under_its_name_before_it_is_whole(log: Path, tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "run.json", {})
    file.process(1, "requests", 0)
    assert not (tmp_path / "run.json").exists()
    file.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--from", "1"], "choose a part of a log"),
        (["--log", "LOG", "--duration", "1s"], "--duration is about a live cluster"),
        (["--log", "LOG", "--controller", "tcp://127.0.0.1:1"], "--controller is about a live cluster"),
        (["--duration", "soon"], "is not a duration"),
    ],
)
def test_options_that_go_together_with_nothing_are_refused(
    log: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    filled = [str(log) if option == "LOG" else option for option in options]
    found = CliRunner().invoke(
        build_app(),
        ["trace", "--perfetto", str(tmp_path / "t.json"), *filled],
        env={"COLUMNS": "300", "NO_COLOR": "1"},
    )
    assert found.exit_code == 2
    assert complaint in found.output
    assert list(tmp_path.iterdir()) == []


def test_a_query_of_a_graph_is_shown_whole_and_step_by_step(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace.json", {})
    tracer = Tracer(file)
    tracer.begin(0)
    steps = QueryStep("m", 4, name="find"), QueryStep("m", 2, after=(0,), name="read")
    tracer.take(0, ModelAdded(make_spec("m")))
    tracer.take(0, QueryArrived(20, None, steps, graph="text"))
    tracer.take(0, RequestArrived(21, "m", 1, None, query=20))
    tracer.take(5_000_000, RequestCancelled(21))
    tracer.take(6_000_000, RequestArrived(22, "m", 1, None, query=20, step=1))
    tracer.take(9_000_000, RequestCancelled(20))
    tracer.finish()
    file.close()
    spans = [each for each in Trace(tmp_path / "trace.json").by_phase["b"] if each["cat"] != "window"]
    assert [(each["name"], each["cat"]) for each in spans] == [
        ("text.find, cancelled", "request"),
        ("text.read, cancelled", "request"),
        ("graph text", "query"),
    ]
    assert spans[2]["args"] == {"query": "20"}
