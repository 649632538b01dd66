"""``mainspring doctor``: what this machine allows, and what each missing thing costs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import STORE, WORKERS, AsJson

if TYPE_CHECKING:
    from mainspring.cli.configuration.config import Config
    from mainspring.cli.doctor.machine import Finding


def doctor(
    store: Annotated[Path | None, STORE] = None,
    workers: Annotated[int, WORKERS] = 1,
    models: Annotated[
        int | None,
        typer.Option(min=1, help="Models whose files are to be open. Default: the store's; else 1,000."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what this machine allows, what each missing thing costs, and how to get it.

    The exit code is 1 if nothing could be served at all, and 0 otherwise.
    """
    from mainspring.cli.doctor.machine import certificates, examine, gpu_findings
    from mainspring.cli.doctor.machine import store as check_store

    if store is None and Path("store").is_dir():
        store = Path("store")
    found = None
    if store is not None:
        folder = store
        found = check_store(folder, lambda: _models(folder), lambda: _damaged(folder))
        models = models or (None if found.fatal and not found.good else _models(folder))
    config, wrong = _configured()
    machine = examine(models or 1000, workers, store or Path(), config.gateway)
    findings = [*machine, *gpu_findings(), *certificates(config), *wrong]
    findings += [found] if found is not None else []
    serves = not any(finding.fatal and not finding.good for finding in findings)
    if as_json:
        print(_json(findings, serves))
    else:
        _print(findings, serves)
    if not serves:
        raise typer.Exit(1)


def _configured() -> tuple[Config, list[Finding]]:
    """Return how `mainspring up` would configure a cluster here, and what is wrong with its file."""
    from mainspring.cli.doctor.machine import Finding
    from mainspring.cli.launcher.up import Ports, cluster_config
    from mainspring.messages.tables import ConfigError

    try:
        return cluster_config(None, {}, Ports()), []
    except ConfigError as error:
        wrong = Finding(
            subject="configuration",
            good=False,
            found=str(error),
            costs="`mainspring up` ends at once in this folder",
            remedy="correct the file",
        )
    return cluster_config(Path(os.devnull), {}, Ports()), [wrong]


def _models(folder: Path) -> int:
    """Return how many models a store has; raise what is wrong if none can run on this machine."""
    from mainspring.cli.launcher.models import ModelSource

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    source = ModelSource(store=str(folder))
    source.check_files()
    return len(source.survey()[0])


def _damaged(folder: Path) -> list[str]:
    """Return what is wrong with single models of a store."""
    from mainspring.cli.launcher.models import ModelSource

    return ModelSource(store=str(folder)).damaged()


def _json(findings: Sequence[Finding], serves: bool) -> str:
    import msgspec

    return json.dumps({"serves": serves, "findings": msgspec.to_builtins(findings)}, indent=2)


def _print(findings: Sequence[Finding], serves: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark = "ok" if finding.good else "FAIL" if finding.fatal else "warn"
        lines = [finding.found]
        if not finding.good:
            lines += [f"costs: {finding.costs}", f"to get it: {finding.remedy}"]
        table.add_row(mark, finding.subject, "\n".join(lines))
    console = Console(markup=False, highlight=False)
    console.print(table)
    bad = sum(1 for finding in findings if not finding.good)
    if not serves:
        console.print("\nThis machine can't serve until what says FAIL is mended.")
    elif bad:
        console.print(f"\nThis machine can serve; {bad} of {len(findings)} could be better.")
    else:
        console.print("\nThis machine can serve, and nothing is missing.")
