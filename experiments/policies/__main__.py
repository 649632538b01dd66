"""Compare policies: ``python -m mainspring.experiments.policies``, or ``make policies``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import matplotlib.pyplot as plt
import msgspec
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from mainspring.experiments.policies import constants, highest
from mainspring.experiments.policies.cell import Cell, Job, configuration
from mainspring.experiments.policies.scenarios import LOADS, SCENARIOS, scenarios_of
from mainspring.experiments.policies.sweep import Results, play_all
from mainspring.scheduler.policies.registry import policy_class

mpl.use("Agg")


def plot_policies(results: Results, file: Path) -> None:
    """Draw goodput in % of the bound: a panel for each load, a group of bars for each scenario."""
    figure, panels = plt.subplots(
        len(results.loads), 1, figsize=(11, 2.8 * len(results.loads)), squeeze=False
    )
    width = 0.8 / len(results.policies)
    for load, panel in zip(results.loads, panels[:, 0], strict=True):
        for place, policy in enumerate(results.policies):
            heights = [100 * (results.of_bound(policy, each, load) or 0.0) for each in results.scenarios]
            at = [index + (place + 0.5) * width - 0.4 for index in range(len(heights))]
            panel.bar(at, heights, width, label=policy)
        panel.set_xticks(range(len(results.scenarios)), results.scenarios)
        panel.set_ylabel(f"% of {results.whole}")
        panel.set_title(f"{load:g} x the fluid capacity", fontsize=10)
        panel.grid(axis="y", alpha=0.3)
    panels[0, 0].legend(ncols=min(8, len(results.policies)), fontsize=8, loc="lower left")
    _save(figure, file)


def plot_frontier(results: Results, fairness: dict[str, float], load: float, file: Path) -> None:
    """Draw the mean goodput against the worst-served tenth's share, for policies of different fairness."""
    figure, panel = plt.subplots(figsize=(7, 5))
    for scenario in results.scenarios:
        points = [
            (results.worst_tenth(policy, scenario, load), results.of_bound(policy, scenario, load))
            for policy in fairness
        ]
        xs = [100 * (worst or 0.0) for worst, _ in points]
        ys = [100 * (good or 0.0) for _, good in points]
        panel.plot(xs, ys, marker="o", label=scenario)
        for (x, y), value in zip(zip(xs, ys, strict=True), fairness.values(), strict=True):
            panel.annotate(f"{value:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    panel.set_xlabel("share served of the worst-served tenth of models, %")
    panel.set_ylabel(f"goodput in % of {results.whole}")
    panel.set_title(f"fairness at {load:g} x the fluid capacity", fontsize=10)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


ALL_LOADS = ",".join(map(str, LOADS))
PARTS = ("table", "highest", "frontier", "constants")
POLICIES = "mainspring,mainspring@fairness=0,fifo,clockwork,symphony,nexus,edf"
FAIRNESS = (0.0, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
FRONTIER = "G,H,skew,sizes"
"""Scenarios whose models are unlike: elsewhere fairness costs nothing."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    cells: list[Cell] = []
    highest: list[highest.Highest] = []


ScenariosOption = Annotated[
    str,
    typer.Option(
        help="Names with commas between; study, others, held-out, unlike-requests, erratic or all: "
        f"{', '.join(SCENARIOS)}."
    ),
]
PoliciesOption = Annotated[str, typer.Option(help="Names with commas between, each as name@option=value.")]
LoadsOption = Annotated[str, typer.Option(help="Multiples of the fluid capacity.")]
SecondsOption = Annotated[float, typer.Option(help="Measured virtual time.")]
MostOption = Annotated[
    int, typer.Option(help="A scenario with more requests is measured for a shorter time.")
]
FloorOption = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="A fairness: bound by schedules that keep its floor (takes five times as long)."
    ),
]
ProfilesOption = Annotated[Path, typer.Option(help="Table of profiles (Clockwork's appendix A).")]
ProcessesOption = Annotated[int, typer.Option(help="Cells played side by side; 0 for one a core.")]
AmpleOption = Annotated[
    bool,
    typer.Option("--ample", help="Play with memory for all models: the most that other LOADs could bring."),
]
OutputOption = Annotated[Path, typer.Option(help="Folder for JSON, plots and bounds.")]


def main(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(PARTS)}.")] = "table",
    scenarios: ScenariosOption = "",
    policies: PoliciesOption = POLICIES,
    loads: LoadsOption = ALL_LOADS,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    seconds: SecondsOption = 20.0,
    warm_up: Annotated[float, typer.Option(help="Virtual time before it, at most.")] = 3.0,
    most_requests: MostOption = 12_000,
    bound: Annotated[bool, typer.Option(help="Compute what was possible.")] = True,
    floor: FloorOption = 0.0,
    profiles: ProfilesOption = Path("../shared/profiles/clockwork_table1.csv"),
    processes: ProcessesOption = 0,
    ample: AmpleOption = False,
    names: Annotated[str, typer.Option(help="Constants that are changed; all if empty.")] = "",
    output: OutputOption = Path("out/policies"),
) -> None:
    """Play policies in virtual time: goodput, the highest load with 99 % in time, or what fairness costs.

    ``constants`` plays the default policy with each of its constants changed (with MAINSPRING_NATIVE=0).
    """
    if what not in PARTS:
        raise typer.BadParameter(f"there is no {what!r}: choose {', '.join(PARTS)}")
    if not profiles.exists():
        raise typer.BadParameter(f"{profiles} is not there: give the table of profiles with --profiles")
    frontier = [f"mainspring@fairness={value:g}" for value in FAIRNESS]
    searched = what == "highest"
    jobs = [
        Job(
            scenario=scenario,
            policy=policy,
            load=load,
            seed=seed,
            seconds=seconds,
            warm_up=warm_up,
            most_requests=most_requests,
            table=str(profiles),
            bounds=str(output / "bounds") if bound and not searched else None,
            fairness=floor,
            ample=ample,
        )
        for scenario in scenarios_of(scenarios or (FRONTIER if what == "frontier" else "study"))
        for load in ([1.0] if searched else _loads(loads))
        for policy in (frontier if what == "frontier" else _policies(policies))
        for seed in range(1 if searched else seeds)
    ]
    if what == "constants":
        jobs = constants.jobs(msgspec.structs.replace(jobs[0], bounds=None), _constants(names), seeds)
    output.mkdir(parents=True, exist_ok=True)
    _run(what, jobs, processes or os.cpu_count() or 1, output)


def _run(what: str, jobs: list[Job], processes: int, output: Path) -> None:
    """Play the jobs, and write and print what came of them."""
    console = Console(width=200)
    file = output / f"{what}.json"
    if what == "highest":
        searched = highest.find_all(jobs, processes)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(Report(highest=searched))))
        console.print(highest.table(searched))
        return
    if what == "constants":
        played = {}
        for name, values in constants.as_played(play_all(jobs, processes)):
            played[name] = values
            console.print(f"{name}: {constants.told(values)}", highlight=False, soft_wrap=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(played)))
        console.print(constants.table(played))
        return
    cells = list(track(play_all(jobs, processes), description="cells", total=len(jobs)))
    file.write_bytes(msgspec.json.format(msgspec.json.encode(Report(cells=cells))))
    results = Results(cells)
    console.print(results.table())
    if what == "table":
        plot_policies(results, output / "policies.png")
    else:
        fairness = {policy: float(policy.rpartition("=")[2]) for policy in results.policies}
        for load in results.loads:
            plot_frontier(results, fairness, load, output / f"fairness-{load:g}.png")
    console.print(f"{file}")


def _policies(text: str) -> list[str]:
    """Return the policies that are meant; a comma belongs to options if it stands between two of them."""
    names: list[str] = []
    for part in text.replace(";", " ").replace(",", " ").split():
        if "=" in part and "@" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    for name in names:
        try:
            policy_class(configuration(name).policy)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return names


def _constants(text: str) -> list[str]:
    """Return the constants that are meant; raise `typer.BadParameter` for one that can't be changed."""
    known = constants.names()
    names = text.split(",") if text else known
    if unknown := set(names) - set(known):
        raise typer.BadParameter(f"there is no constant {', '.join(sorted(unknown))} to change")
    return names


def _loads(text: str) -> list[float]:
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} are not loads: give numbers with commas between") from None
    if min(loads) <= 0:
        raise typer.BadParameter(f"a load of {min(loads):g} can't be: give numbers greater than 0")
    return loads


if __name__ == "__main__":
    typer.run(main)
