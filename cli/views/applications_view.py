"""Applications as tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from mainspring.messages.applications import ApplicationReport


def overview(found: Sequence[ApplicationReport]) -> None:
    """Print a line for each application, and below it what keeps it from being served."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("application", overflow="fold")
    made.add_column("policy", overflow="fold")
    for title in ("members", "requests", "missing", "defaults", "sure", "loss", "regret", "joined"):
        made.add_column(title, justify="right", no_wrap=True)
    for each in found:
        counts = (str(len(each.members)), str(each.requests), str(each.missing), str(each.defaults))
        means = (_mean(each.confidence), _mean(each.loss), f"{each.regret:.0f}", str(each.joined))
        made.add_row(each.spec.name, each.spec.policy, *counts, *means)
    console = Console(highlight=False)
    console.print(made)
    for each in found:
        if each.fault:
            console.print(f"{each.spec.name} is not ready: {each.fault}", markup=False)


def detail(found: ApplicationReport) -> None:
    """Print an application's counts and a line for each member."""
    spec, console = found.spec, Console(highlight=False)
    lines = [
        f"{spec.name}: {spec.policy} over {spec.output} ({spec.kind})",
        *([f"not ready: {found.fault}"] if found.fault else []),
        f"{found.requests} requests, {found.rows} rows, {found.defaults} of them with the default",
        f"confidence {_mean(found.confidence)}, loss {_mean(found.loss)} of {found.judged} rows, "
        f"regret {found.regret:.1f}",
        f"feedback: joined {found.joined}, late {found.late}, duplicate {found.duplicate}, "
        f"unknown {found.unknown}, waited for {found.waiting}",
        *([f"contexts: {found.contexts}"] if spec.context else []),
        *([f"the policy raised {found.policy_failed} times"] if found.policy_failed else []),
    ]
    for line in lines:
        console.print(line, markup=False)
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("member", overflow="fold")
    for title in ("weight", "loss", "judged", "asked", "missing"):
        made.add_column(title, justify="right", no_wrap=True)
    made.add_column("", overflow="fold")
    for each in found.members:
        asked = each.asked / found.requests if found.requests else 0.0
        numbers = (
            f"{each.weight:.1%}",
            _mean(each.loss),
            str(each.judged),
            f"{asked:.0%}",
            str(each.missing),
        )
        made.add_row(each.member, *numbers, f"left out: {each.fault}" if each.fault else "")
    console.print(made)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
