"""Every case of the test suites that the onnx package ships, through the real compiler.

``python -m mainspring.experiments.onnx_suites``, which ``make suites`` runs. Each case compiles and matches,
or is refused with a reason. Cases run in a process of their own, a fresh one every few hundred: one that dies
or hangs in native code is counted as crashed, and the others go on.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import onnx
import onnxruntime
import typer

from mainspring.experiments.apart import Apart, Crashed
from mainspring.experiments.suite_cases import FOLDERS, Case, model_cases, node_cases, node_modules
from mainspring.experiments.suite_outcomes import (
    AS_IS,
    CRASHED,
    DIFFERS,
    MATCHES,
    REFUSED,
    WITH_WEIGHTS,
    Outcome,
    try_case,
)

CHUNK = 400
"""Cases after which a process is replaced."""

LONGEST_S = 400.0
"""Time for one case, after which it counts as crashed."""

TryCase = Callable[[Case, Path], Outcome]


def run_cases(
    cases: Sequence[Callable[[], Case]],
    function: TryCase = try_case,
    chunk: int = CHUNK,
    longest_s: float = LONGEST_S,
) -> Iterator[Outcome]:
    """Yield what becomes of each case, in order."""
    worker: Apart[Case, Outcome] | None = None
    try:
        for number, read in enumerate(cases):
            if worker is not None and number % chunk == 0:
                worker.close()
                worker = None
            worker = worker or Apart(function)
            case = read()
            try:
                outcome = worker.ask(case, longest_s)
            except Crashed as error:
                outcome = Outcome(case.suite, case.name, CRASHED, detail=str(error))
                worker.close()
                worker = None
            yield outcome
    finally:
        if worker is not None:
            worker.close()


def summarise(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the tables: counts for each suite, then the reasons of the refusals."""
    suites = sorted({outcome.suite for outcome in outcomes})
    lines = [
        f"{'suite':<20}{'cases':>7}{'match':>7}{'with weights':>14}{'refused':>9}{'differ':>8}{'crash':>7}"
    ]
    for suite in [*suites, "all"]:
        mine = [outcome for outcome in outcomes if suite in (outcome.suite, "all")]
        counts = Counter((outcome.status, outcome.form) for outcome in mine)
        by_status = Counter(outcome.status for outcome in mine)
        lines.append(
            f"{suite:<20}{len(mine):>7}{counts[MATCHES, AS_IS]:>7}{counts[MATCHES, WITH_WEIGHTS]:>14}"
            f"{by_status[REFUSED]:>9}{by_status[DIFFERS]:>8}{by_status[CRASHED]:>7}"
        )
    for status in (REFUSED, MATCHES):
        reasons = Counter(
            outcome.reason for outcome in outcomes if outcome.status == status and outcome.reason
        )
        lines += ["", f"{status}, and why"]
        lines += [f"{count:>7}  {reason}" for reason, count in reasons.most_common()]
    bad = [outcome for outcome in outcomes if outcome.status in (DIFFERS, CRASHED)]
    return [*lines, "", *(f"{case.status}: {case.suite}/{case.name}: {case.detail}" for case in bad)]


def main(
    limit: Annotated[int, typer.Option(help="Try about so many cases, evenly chosen; 0 is all.")] = 0,
    suite: Annotated[list[str] | None, typer.Option(help="Only this suite: node, light, simple...")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every case's outcome to this file.")] = None,
) -> None:
    """Try the suites and print what became of them; exit with 1 if a case differs or crashes."""
    wanted = suite or ["node", *FOLDERS]
    nodes = [(lambda case=case: case) for case in node_cases(node_modules() if "node" in wanted else [])]
    models = model_cases([folder for folder in FOLDERS if folder in wanted])
    cases: list[Callable[[], Case]] = [*chain(nodes, models)]
    cases = cases[:: max(1, len(cases) // limit)] if limit else cases
    print(
        f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}: {len(cases)} cases"
    )
    outcomes = []
    for outcome in run_cases(cases):
        outcomes.append(outcome)
        if len(outcomes) % 100 == 0:
            print(f"  {len(outcomes)} tried", flush=True)
    print("\n".join(summarise(outcomes)))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    if any(outcome.status in (DIFFERS, CRASHED) for outcome in outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
