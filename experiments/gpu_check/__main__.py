"""``make gpu-check``: all checks, one table at the end; ``--help`` says what may be chosen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console

from mainspring.experiments.bench.report import this_machine, wide_console
from mainspring.experiments.gpu_check.bundle import contents
from mainspring.experiments.gpu_check.parts import PARTS, least_s, no_room, patience_s, run_alone
from mainspring.experiments.gpu_check.rehearsal import bindings
from mainspring.experiments.gpu_check.settings import OUTPUT, Settings, rehearsal, the_zoo
from mainspring.experiments.gpu_check.verdicts import State, Verdict, good, markdown, not_run, summary, table
from mainspring.telemetry.report import write_json
from mainspring.worker.engines.cuda.devices import find_devices
from mainspring.worker.engines.cuda.driver import BINDINGS, DriverMissing

BUDGET_S = 470.0
COMPILE_S = 3600.0
COMPILING = ["compile"]
LAST_S = 20.0
NO_GPU = 2
"""Exit code where there is nothing to check."""


class Ran(NamedTuple):
    """Verdicts of a check, and how long it took."""

    name: str
    seconds: float
    verdicts: list[Verdict]


def run_all(settings: Settings, names: Sequence[str], budget_s: float, console: Console) -> list[Ran]:
    """Run the checks one after the other, saying how each ended; what the budget leaves no time for, none."""
    end_s = time.monotonic() + budget_s
    done: list[Ran] = []
    for name in names:
        began_s = time.monotonic()
        left_s = max(0.0, end_s - began_s)
        record = recorder(settings, name)
        needed_s = least_s(name, settings)
        reason = no_room(name, settings)
        if left_s < needed_s:
            reason = f"it takes {needed_s:.0f} s at least, and {left_s:.0f} of {budget_s:.0f} s are left"
        if reason:
            record(skipped := not_run(f"check {name}", reason))
            done.append(Ran(name, 0.0, [skipped]))
            continue
        console.print(f"{name} ...", highlight=False)
        limit_s = min(left_s, patience_s(name, settings))
        compile_s = min(settings.compile_s, max(1.0, limit_s - LAST_S))
        limited = msgspec.structs.replace(settings, limit_s=limit_s, compile_s=compile_s)
        verdicts = run_alone(name, limited, limit_s, record)
        done.append(Ran(name, time.monotonic() - began_s, verdicts))
        console.print(f"  {summary(verdicts)}; {done[-1].seconds:.1f} s", highlight=False)
    return done


def recorder(settings: Settings, name: str) -> Callable[[Verdict], None]:
    """Return what adds a check's verdict to ``verdicts.jsonl``, so that none is lost if all this is cut."""
    path = Path(settings.folder) / "verdicts.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)

    def record(verdict: Verdict) -> None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode({"check": name, "verdict": verdict}) + b"\n")

    return record


def publish(settings: Settings, done: Sequence[Ran], title: str, console: Console) -> list[Verdict]:
    """Print the table and write it as JSON and Markdown; return all verdicts."""
    verdicts = [verdict for ran in done for verdict in ran.verdicts]
    folder, machine = Path(settings.folder), this_machine()
    seconds = sum(ran.seconds for ran in done)
    write_json(
        folder / "gpu-check.json",
        {
            "title": title,
            "machine": machine,
            "settings": settings,
            "seconds": {ran.name: round(ran.seconds, 1) for ran in done},
            "verdicts": verdicts,
        },
    )
    text = f"{title}; {machine.machine}, {machine.date}, {seconds:.0f} s\n\n{markdown(verdicts)}"
    (folder / "gpu-check.md").write_text(text, encoding="utf-8")
    console.print(table(title, verdicts))
    where = f"{machine.machine}, {machine.date}; {folder}/gpu-check.json, .md"
    console.print(f"{summary(verdicts)}; {seconds:.0f} s, {where}", highlight=False)
    return verdicts


def parse_parts(text: str) -> list[str]:
    """Return the checks named in ``load,graphs``, in their order; raise BadParameter for one there is not."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in named if name not in PARTS]
    if unknown:
        known = ", ".join(PARTS)
        raise typer.BadParameter(f"there is no check {unknown[0]!r}; there are {known}", param_hint="--only")
    return [name for name in PARTS if name in named or not named]


def beforehand(names: Sequence[str], arch: str, device: str, output: Path) -> Settings:
    """Return settings to compile with where there is no GPU; raise BadParameter if more is to be done."""
    if list(names) != COMPILING:
        raise typer.BadParameter("only what compiles can do without a GPU", param_hint="--arch")
    return Settings(folder=str(output), device=device, arch=arch)


def satisfied(names: Sequence[str], verdicts: Sequence[Verdict]) -> bool:
    """Return True if every target that was measured is met and, where none was measured, all compiled."""
    if list(names) == COMPILING:
        return not {each.state for each in verdicts} & {State.FAILED, State.NOT_RUN}
    return good(verdicts)


def main(
    device: Annotated[str, typer.Option(help="The GPU: cuda:0 for the first.")] = "cuda:0",
    only: Annotated[str, typer.Option(help="Checks to run, separated by commas; all by default.")] = "",
    arch: Annotated[
        str, typer.Option(help="With --only compile: compile for this, such as sm_90, which needs no GPU.")
    ] = "",
    output: Annotated[Path, typer.Option(help="Folder for stores, logs and the report.")] = OUTPUT,
    budget: Annotated[
        float | None, typer.Option(min=1, help="Seconds for all of them together: 470, an hour with --arch.")
    ] = None,
    skip_without_gpu: Annotated[
        bool, typer.Option("--skip-without-gpu", help="Succeed where there is no GPU to check.")
    ] = False,
    tune_seconds: Annotated[
        float, typer.Option(min=0, help="Have tiles chosen by timing for as long; 0: only by calculation.")
    ] = 0.0,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Run every check on a device that is not there, with small models."),
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="Check the models of an unpacked bundle; gpu_check.pyz gives it.")
    ] = None,
) -> None:
    """Check on a GPU what can't be proven without one, and print one table."""
    console = wide_console()
    names = parse_parts(only)
    if rehearse:
        os.environ[BINDINGS] = bindings.__name__
    budget_s = budget or (COMPILE_S if arch else BUDGET_S)
    if arch:
        settings = beforehand(names, arch, device, output)
    else:
        settings, reason = on_device(device, output, bundle, rehearse)
        if reason:
            console.print(f"gpu-check can't run: {reason}", highlight=False, markup=False)
            console.print("Nothing was checked. --rehearse runs every check without a GPU.", highlight=False)
            raise typer.Exit(0 if skip_without_gpu else NO_GPU)
    settings = msgspec.structs.replace(settings, tune_seconds=tune_seconds or settings.tune_seconds)
    if names == COMPILING:
        settings = msgspec.structs.replace(settings, compile_s=max(1.0, budget_s - LAST_S))
    title = f"Compiled for {arch}" if arch else f"GPU check, {settings.device}"
    if rehearse:
        title = "Rehearsal without a GPU: the figures mean nothing"
    verdicts = publish(settings, run_all(settings, names, budget_s, console), title, console)
    if not satisfied(names, verdicts):
        raise typer.Exit(1)


def on_device(device: str, output: Path, bundle: Path | None, rehearse: bool) -> tuple[Settings, str]:
    """Return settings for a device, and why it can't be checked here, with what would help, if it can't."""
    if rehearse:
        settings, reason = rehearsal(output), ""
    else:
        # The architectures of a bundle are known from its files alone.
        known = the_zoo() if bundle is None else ()
        settings = Settings(folder=str(output), device=device, architectures=known)
        reason = missing(device)
    if bundle is None or reason:
        return settings, reason
    try:
        found = contents.read_bundle(bundle)
        there = find_devices()[int(settings.device.partition(":")[2])]
        return contents.with_bundle(settings, bundle, found, contents.suitable(found, there.arch)), ""
    except (contents.BundleError, DriverMissing) as error:
        return settings, str(error)


def missing(device: str) -> str:
    """Return why the device can't be checked here, with what would help; nothing if it can."""
    number = int(device.partition(":")[2])
    try:
        count = len(find_devices())
    except DriverMissing as error:
        return str(error)
    return "" if number < count else f"there is no GPU {number}: CUDA counts {count}, beginning with 0"


if __name__ == "__main__":
    typer.run(main)
