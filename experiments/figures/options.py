"""Options of every experiment, and how much is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.scheduler.policies.registry import policy_class

Policies = Annotated[list[str] | None, typer.Option("--policy", help="Policy to run; may be given again.")]
Live = Annotated[bool, typer.Option("--live", help="Real sockets, emulated devices.")]
Full = Annotated[bool, typer.Option("--full/--short", help="The paper's own lengths.")]
Length = Annotated[float, typer.Option(min=1e-3, help="Factor on every length of time.")]
Profiles = Annotated[Path, typer.Option(help="Table of profiles.")]
Traces = Annotated[Path, typer.Option(help="Folder of the Azure Functions files.")]
Output = Annotated[Path, typer.Option(help="Folder for JSON and plots.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]
Processes = Annotated[int, typer.Option(min=0, help="Simulations at a time; 0: each core.")]


PROFILES = Path("../shared/profiles/clockwork_table1.csv")
TRACES = Path("../shared/traces")
OUTPUT = Path("out/experiments")
DEFAULT_POLICIES = ("clockwork", "mainspring")
"""The paper's own and our default."""
LIVE_DEVICES_SHARE = 1 / 6
"""A live run has a sixth of the paper's devices, models and load: what sockets on two cores can carry."""
LIVE_IO_KB = 4.0
"""Tensors of live runs. The paper's clients too sent "zero-length inputs" where the network was too small
for the experiment (section 6.5); what tensors cost is measured by ``make bench-gateway``."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one experiment."""

    policies: tuple[str, ...] = ()
    """None for those that the experiment compares by default."""
    live: bool = False
    """Serve through real sockets on emulated devices of this machine instead of simulating."""
    full: bool = False
    """The paper's own lengths instead of short ones."""
    length: float = 1.0
    """Factor on every length of time."""
    profiles: Path = PROFILES
    traces: Path = TRACES
    """Folder of the Azure Functions files."""
    output: Path = OUTPUT
    seed: int = 0
    processes: int = 0
    """Simulations at a time; 0 for one on each core."""
    log: Path | None = None
    """Event log of a live run, for the experiment that compares with one."""

    def seconds(self, short_s: float, full_s: float) -> float:
        """Return the length of something that takes so long in the two forms."""
        return (full_s if self.full else short_s) * self.length

    def chosen(self, default: tuple[str, ...] = DEFAULT_POLICIES) -> tuple[str, ...]:
        """Return the policies to run; raise ValueError for one that there is not."""
        policies = self.policies or default
        for policy in policies:
            policy_class(policy)
        return policies

    def share(self, number: float) -> float:
        """Return the part of a number of the paper that a live run has; all of it in a simulation."""
        return number * LIVE_DEVICES_SHARE if self.live else number

    def count(self, number: int) -> int:
        """Return `share` of a number of things, at least one."""
        return max(1, round(self.share(number)))

    def half(self, number: float) -> float:
        """Return half of a number in a live run: of a load on one device, which the sockets have to carry."""
        return number / 2 if self.live else number

    @property
    def io_kb(self) -> float | None:
        """Size of the tensors; None for the profiles' own, which cost a simulation nothing."""
        return LIVE_IO_KB if self.live else None

    @property
    def at_once(self) -> int:
        """Number of cases that run at a time."""
        if self.live:
            return 1
        return self.processes or len(os.sched_getaffinity(0))
