"""What a request takes of the compiled scheduler at the least: the objects, messages and heaps that it needs.

``make bench-floor`` times a bare program (`scheduler_bare`) beside the scheduler itself (`bench_scheduler`,
part ``wide`` on 12 devices).
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.experiments.bench.report import Figure, publish
from mainspring.experiments.bench.scheduler_bare import bare_us
from mainspring.experiments.bench_scheduler import DEVICE_RATE, STEADY
from mainspring.experiments.scheduler_cost import measure

OUTPUT = Path("out/bench")


def main(
    requests: Annotated[int, typer.Option(min=1_000)] = 40_000,
    plays: Annotated[int, typer.Option(min=1)] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print a table, write it as JSON."""
    gc.disable()
    try:
        least_us = bare_us(requests, plays)
    except (OSError, RuntimeError) as error:
        sys.exit(f"bench-floor: {error}")
    wide = msgspec.structs.replace(STEADY, devices=12, rate=12 * DEVICE_RATE, everywhere=True, seconds=2.0)
    cost = measure(wide, plays)
    figures = [
        Figure("objects, messages and heaps of a request alone", round(least_us, 2), "us"),
        Figure("the scheduler, 12 devices that hold all they can", round(cost.request_us_least, 2), "us"),
    ]
    publish("floor", "What a request takes of a compiled scheduler at the least", figures, output)


if __name__ == "__main__":
    typer.run(main)
