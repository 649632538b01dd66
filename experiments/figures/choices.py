"""What a person may choose on the command line of the experiments, as `options.Options` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Policies = Annotated[list[str] | None, typer.Option("--policy", help="Policy to run; may be given again.")]
Live = Annotated[bool, typer.Option("--live", help="Real sockets, emulated devices.")]
Full = Annotated[bool, typer.Option("--full/--short", help="The paper's own lengths.")]
Length = Annotated[float, typer.Option(min=1e-3, help="Factor on every length of time.")]
Profiles = Annotated[Path, typer.Option(help="Table of profiles.")]
Traces = Annotated[Path, typer.Option(help="Folder of the Azure Functions files.")]
Output = Annotated[Path, typer.Option(help="Folder for JSON and plots.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]
Processes = Annotated[int, typer.Option(min=0, help="Simulations at a time; 0: each core.")]
