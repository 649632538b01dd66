"""InferLine's figures: ``python -m mainspring.experiments.inferline``, or ``make inferline``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from mainspring.experiments.inferline import plans, tuning
from mainspring.telemetry.report import write_json

Figure = Callable[[Path, int], Iterable[dict[str, Any]]]
FIGURES: Mapping[str, Figure] = {
    "plans": plans.compared,
    "assumed": plans.assumed,
    "kinds": plans.kinds,
    "shared": plans.shared,
    "sensitivity": plans.sensitivity,
    "traces": tuning.traces,
    "rates": tuning.rates,
    "bursts": tuning.bursts,
    "attribution": tuning.attribution,
    "ds2": tuning.against_ds2,
}


def main(
    figures: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(FIGURES)}.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("out/inferline"),
    seed: Annotated[int, typer.Option(help="Seed of all arrivals.")] = 0,
) -> None:
    """Print each figure as a table, and write it as JSON."""
    output.mkdir(parents=True, exist_ok=True)
    for name in figures or FIGURES:
        if name not in FIGURES:
            raise typer.BadParameter(f"there is no figure {name}: choose {', '.join(FIGURES)}")
        began, rows = monotonic(), []
        typer.echo(f"\n{name}")
        with tempfile.TemporaryDirectory() as folder:
            for row in FIGURES[name](Path(folder), seed):
                rows.append(row)
                typer.echo("  " + "  ".join(f"{key} {_told(value)}" for key, value in row.items()))
        write_json(output / f"{name}.json", rows)
        typer.echo(f"  {monotonic() - began:.0f} s")


def _told(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    typer.run(main)
