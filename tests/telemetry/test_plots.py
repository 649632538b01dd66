"""The picture: written whole for every kind of run, with every panel and its figures in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from mainspring.messages.actions import Infer, Load, Result
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded, RequestArrived, WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.log import EventLogWriter
from mainspring.telemetry.plots import draw_report, publish
from mainspring.telemetry.report import read_summary
from mainspring.telemetry.summary import Analysis, analyse_log
from mainspring.traces.records import Records
from mainspring.traces.report import Summary, summarise

SECOND = 1_000_000_000
DEMO_FIELDS = (
    "offered",
    "goodput",
    "rejected",
    "late",
    "lost",
    "p50_ms",
    "p99_ms",
    "p99_99_ms",
    "max_ms",
    "cold_start_share",
    "loads",
    "mean_batch",
    "infer_prediction_error_p99_us",
    "load_prediction_error_p99_us",
    "replayer_lag_p99_us",
)
MS = 1_000_000


def a_summary(slo_ns: int | None = 100 * MS) -> Summary:
    records = Records()
    for index in range(400):
        key = records.sent(index * 10 * MS, index * 10 * MS + 1000, f"m{index % 3}", 1, slo_ns)
        replied_ns = index * 10 * MS + (5 + index % 30) * MS
        if index % 20 == 7:
            records.error(key, replied_ns, Reason.DEADLINE_UNREACHABLE)
        elif index % 100 != 99:
            records.outputs(key, replied_ns, Timing(1, 1, 1, 5, 1 << index % 4, index % 40 == 0, "w"))
    return summarise(records, start_ns=SECOND)


def an_analysis(directory: Path, actions: int = 200) -> Analysis:
    log = EventLogWriter(directory)
    names = ["m", *[f"m{number}" for number in range(0, actions, 10)]]
    specs = [ModelSpec(name, f"h-{name}", "x", (2,), 1, (1,), (), (), {}) for name in names]
    for spec in specs:
        log.append(SECOND, ModelAdded(spec))
    prepared = {spec.name: spec.artifact for spec in specs}
    log.append(SECOND, WorkerJoined("w", "cpu", len(names), prepared))
    for number in range(actions):
        ns = SECOND + number * 20 * MS
        duration = 5 * MS + number * 1000
        if number % 10:
            ids = 2 * number, 2 * number + 1
            for request_id in ids:
                log.append(ns, RequestArrived(request_id, "m", 1, None))
            log.append(ns, Infer(number, "w", "m", 2, ids, (1, 1), (False, True), ns, ns + 1, ns, 5_100_000))
        else:
            page = number // 10
            log.append(ns, Load(number, "w", f"m{number}", (page,), ns, ns + 1, ns, 5_100_000))
        log.append(ns + duration, Result(number, "w", Status.OK, ns, ns + duration))
    log.close()
    return analyse_log(directory)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def spy(figure: Figure, *args: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", spy)
    return iter([figures])


def test_a_report_has_every_panel_with_units_and_the_runs_figures(
    tmp_path: Path, drawn: Iterator[list[Figure]]
) -> None:
    path = tmp_path / "out" / "report.png"
    draw_report(path, "the demo", a_summary(), an_analysis(tmp_path / "log"))
    (figure,) = next(drawn)
    assert "the demo" in figure.texts[0].get_text()
    assert "400 requests" in figure.texts[1].get_text()
    titles = " / ".join(axes.get_title(loc="left") for axes in figure.axes)
    for subject in ("goodput", "Latency", "Rejected", "Batch", "Cold", "Page", "Predicted", "Completion"):
        assert subject in titles
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert any("SLO 100 ms" in text.get_text() for text in figure.axes[1].texts)
    assert min(imread(path).shape[:2]) > 1000
    assert [p.name for p in path.parent.iterdir()] == ["report.png"]


def test_all_of_a_long_title_is_in_the_picture(tmp_path: Path, drawn: Iterator[list[Figure]]) -> None:
    title = ", ".join(f"poisson over {number} models with an SLO of {number} ms" for number in range(1, 12))
    draw_report(tmp_path / "report.png", title, a_summary(), an_analysis(tmp_path / "log"))
    (figure,) = next(drawn)
    assert " ".join(text.get_text() for text in figure.texts).startswith(title)
    top = max(axes.get_tightbbox().ymax for axes in figure.axes)  # type: ignore[union-attr]
    for text in figure.texts:
        box = text.get_window_extent()
        assert 0 <= box.xmin < box.xmax <= figure.bbox.xmax
        assert top <= box.ymin < box.ymax <= figure.bbox.ymax, "above the panels and not in them"


def test_every_series_ends_with_the_run_and_each_slo_has_its_line(
    tmp_path: Path, drawn: Iterator[list[Figure]]
) -> None:
    records = Records()
    for index in range(60):
        slo_ms = 200 if index % 20 == 0 else 50
        key = records.sent(index * 50 * MS, index * 50 * MS, "m", 1, slo_ms * MS)
        records.outputs(key, (index * 50 + 5) * MS, Timing(1, 1, 1, 5, 1, False, "w"))
    summary = summarise(records, start_ns=0, duration_ns=5 * SECOND)
    draw_report(tmp_path / "report.png", "three of five seconds", summary)
    (figure,) = next(drawn)
    throughput, latency = figure.axes[:2]
    assert {line.get_label(): line.get_xdata()[-1] for line in throughput.get_lines()} == {  # type: ignore[index]
        "goodput (in time for the caller)": 5,
        "offered": 5,
    }
    assert {axes.get_xlim() for axes in figure.axes} == {(-0.05, 5.05)}
    told = sorted(text.get_text() for text in latency.texts)
    assert told == ["SLO 200 ms (5% of those with one)", "SLO 50 ms (95% of those with one)"]


def test_the_picture_says_whose_latencies_it_shows(tmp_path: Path, drawn: Iterator[list[Figure]]) -> None:
    records = Records()
    for index in range(10):
        key = records.sent(index * MS, (index + 40) * MS, "m", 1, 100 * MS)
        records.outputs(key, (index + 45) * MS, Timing(MS, 1, 1, 5, 1, False, "w"))
    draw_report(tmp_path / "report.png", "behind", summarise(records, start_ns=0))
    (figure,) = next(drawn)
    told = " ".join(text.get_text() for text in figure.texts)
    assert "The replayer fell behind its schedule, by 40.0 ms at p99" in told


@pytest.mark.parametrize("slo_ns", [None, 100 * MS])
def test_a_run_without_an_event_log_or_without_requests_is_drawn_too(
    tmp_path: Path, slo_ns: int | None
) -> None:
    draw_report(tmp_path / "a.png", "clients only", a_summary(slo_ns))
    draw_report(
        tmp_path / "b.png", "nothing", summarise(Records(), start_ns=0), an_analysis(tmp_path / "log", 0)
    )
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_publishing_leaves_both_files_with_the_fields_of_clients_and_log(tmp_path: Path) -> None:
    summary = a_summary()
    fields = publish(tmp_path, "t", summary, an_analysis(tmp_path / "log"))
    stored = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert stored["title"] == "t"
    for name in DEMO_FIELDS:
        assert name in stored, f"the demo's summary must have {name}"
    assert set(stored["infer_prediction_error_p99_us"]) == {"over", "under"}
    assert read_summary(tmp_path / "summary.json") == summary
    assert fields["loads"] == stored["loads"] == 20
    assert (tmp_path / "report.png").exists()
