"""Figure 9: how far off predictions are, of durations and of when actions end (section 6.5).

The simulated devices jitter as the paper's did (p99.99 within 0.03 % of the median, and rarely a delay of up
to 20 ms); beside them stands a real run: the event log of ``make demo``, models of ONNX on this machine's
cores, or another one with ``--log DIR``. With ``--live`` the devices are emulated behind real sockets.
``python -m mainspring.experiments.figures.figure9``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mainspring.experiments.figures.canvas import Page
from mainspring.experiments.figures.case import Case, Observed
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.figure8 import DEVICES, cases_on
from mainspring.experiments.figures.options import DEFAULT_POLICIES, Options
from mainspring.experiments.figures.paper import FIGURE9
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.style import BLACK, BLUE, ORANGE, finish_axes
from mainspring.telemetry.summary import Analysis, analyse_log

DEMO_LOG = Path("out/demo/run/events")
SHARE_OF_FIGURE8 = 0.5
POINTS = 300
SMALLEST_US, LARGEST_US = 0.1, 1e8
KINDS = ("INFER", "LOAD")
WHATS = ("duration", "completion")
SIDES = ("over", "under")


class Tail(msgspec.Struct, frozen=True):
    """Errors of one kind in one direction, of all actions of the kind."""

    kind: str
    what: str
    side: str
    """``over``: predicted too long; ``under``: too short."""
    p99_us: float | None
    max_us: float | None
    error_us: list[float]
    """Ascending, thinned to `POINTS`."""
    more_percent: list[float]


class Row(msgspec.Struct, frozen=True):
    """One run."""

    policy: str
    infers: int
    loads: int
    infer_spread: float | None
    """p99 of durations over the median of the same model and batch: what the machine itself adds."""
    tails: list[Tail]

    def tail(self, kind: str, what: str, side: str) -> Tail:
        """Return one of the tails."""
        return next(one for one in self.tails if (one.kind, one.what, one.side) == (kind, what, side))


def cases(options: Options) -> list[Case]:
    """Return figure 8's cases on more devices, shorter, with an event log; by default of our own policy."""
    shorter = msgspec.structs.replace(
        options, policies=options.policies or DEFAULT_POLICIES[-1:], length=options.length * SHARE_OF_FIGURE8
    )
    return [replace(case, log=True) for case in cases_on(shorter, DEVICES[0])]


def measure(case: Case, observed: Observed) -> Row:
    """Take the errors from the run's event log."""
    assert observed.analysis is not None
    return row_of(case.policy, observed.analysis)


def from_log(options: Options) -> list[Row]:
    """Return a row for the log of a real run; none where there is no log.

    Raises ValueError for a log that was named and can't be read.
    """
    path = options.log or DEMO_LOG
    if options.log is None and not path.is_dir():
        return []
    try:
        return [row_of("real run", analyse_log(path))]
    except OSError as error:
        raise ValueError(
            f"the event log {path} can't be read: {error.strerror or error}; name the folder that a"
            " run wrote, such as out/demo/run/events"
        ) from None


def row_of(name: str, analysis: Analysis) -> Row:
    """Return the errors of a run."""
    errors = {
        ("INFER", "duration"): analysis.infer.duration_error_ns(),
        ("INFER", "completion"): analysis.infer.completion_error_ns(),
        ("LOAD", "duration"): analysis.load.duration_error_ns(),
        ("LOAD", "completion"): analysis.load.completion_error_ns(),
    }
    return Row(
        policy=name,
        infers=len(analysis.infer),
        loads=len(analysis.load),
        infer_spread=analysis.summary.infer_spread_p99,
        tails=[
            _tail(kind, what, side, errors[kind, what]) for kind in KINDS for what in WHATS for side in SIDES
        ],
    )


def _tail(kind: str, what: str, side: str, error_ns: npt.NDArray[np.int64]) -> Tail:
    signed_us = (error_ns if side == "under" else -error_ns) / 1e3
    part = np.sort(signed_us[signed_us > 0])
    more = np.arange(len(part), 0, -1) / max(len(error_ns), 1) * 100
    keep = _spread_out(len(part))
    return Tail(
        kind=kind,
        what=what,
        side=side,
        p99_us=float(np.percentile(part, 99, method="inverted_cdf")) if len(part) else None,
        max_us=float(part[-1]) if len(part) else None,
        error_us=part[keep].tolist(),
        more_percent=more[keep].tolist(),
    )


def _spread_out(number: int) -> npt.NDArray[np.int64]:
    if number <= POINTS:
        return np.arange(number)
    from_end = np.unique(np.geomspace(1, number, POINTS).astype(np.int64))
    return (number - from_end)[::-1]


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return the 99th percentiles that the text names, and the largest errors."""
    lines = []
    for what in WHATS:
        for kind in KINDS:
            for side in SIDES:
                tails = {row.policy: row.tail(kind, what, side) for row in rows}
                name = f"{kind} {what}, {side}"
                lines.append(
                    Line(
                        name=name,
                        unit="us",
                        ours={policy: tail.p99_us for policy, tail in tails.items()},
                        paper=FIGURE9.get(name),
                    )
                )
    largest = {row.policy: row.tail("INFER", "duration", "under").max_us for row in rows}
    spread = {row.policy: row.infer_spread for row in rows}
    return [
        *lines,
        Line(name="INFER duration, under, largest", unit="us", ours=largest),
        Line(name="INFER p99 / median of equal work", unit="x", ours=spread),
    ]


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the tails: a row of panels for each run, durations and ends beside each other."""
    page = Page("Figure 9: prediction errors", len(rows), len(WHATS))
    for number, row in enumerate(rows):
        kind = "live" if options.live else "simulated"
        name = row.policy if row.policy == "real run" else f"{row.policy}, {kind}"
        for column, what in enumerate(WHATS):
            axes = page.panel(number, column)
            _panel(axes, row, what)
            title = {"duration": "Durations", "completion": "Completion"}[what]
            finish_axes(axes, f"{title}: {name}", "% of actions with more", "error, microseconds")
            axes.legend(loc="upper right", fontsize=9)
    page.save(path)


def _panel(axes: Axes, row: Row, what: str) -> None:
    for kind, colour in zip(KINDS, (BLUE, ORANGE), strict=True):
        for side, dash in zip(SIDES, ("--", "-"), strict=True):
            tail = row.tail(kind, what, side)
            if tail.p99_us is None:
                continue
            xs = [max(error_us, SMALLEST_US) for error_us in tail.error_us]
            label = f"{kind} {side} (p99 {tail.p99_us:,.4g} us)"
            axes.plot(
                xs, tail.more_percent, drawstyle="steps-post", color=colour, linestyle=dash, label=label
            )
    _paper(axes, what)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=150)
    axes.set_xlim(SMALLEST_US, LARGEST_US)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.15g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhline(1.0, color=BLACK, linewidth=0.5)


def _paper(axes: Axes, what: str) -> None:
    for kind, colour in zip(KINDS, (BLUE, ORANGE), strict=True):
        for side, marker in zip(SIDES, "x+", strict=True):
            fact = FIGURE9.get(f"{kind} {what}, {side}")
            if fact is not None:
                name = "the paper's p99 (over: x, under: +)" if (kind, side) == ("INFER", "under") else None
                axes.plot([fact.value], [1], color=colour, marker=marker, markersize=10, ls="", label=name)


def notes(options: Options) -> list[str]:
    """Return where the real run comes from."""
    path = options.log or DEMO_LOG
    if options.log is not None or path.is_dir():
        told = f"The real run is {path}: real executions on this machine, not emulated ones."
    else:
        told = f"There is no log of a real run at {path}: `make demo` writes one, or name one with --log."
    return [
        told,
        "The paper's percentiles, drawn at 1 %, are of errors in one direction, as ours are.",
    ]


FIGURE = Experiment(
    name="figure9",
    title="Figure 9: prediction errors",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
    extra=from_log,
)

if __name__ == "__main__":
    main(FIGURE)
