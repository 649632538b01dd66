"""What deployments start, read as the command line reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from mainspring.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


@cache
def command_line() -> Any:
    """Return the command line's verbs."""
    return typer.main.get_command(build_app())


def taken(arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what a command sets; raise click's UsageError for one that it does not take.

    ``variables`` stand in the arguments as Kubernetes has them, ``$(NAME)``.
    """
    for name, value in (variables or {}).items():
        arguments = [each.replace(f"$({name})", value) for each in arguments]
    left = [each for each in arguments if "$(" in each]
    assert not left, f"not a variable of the container: {left}"
    verb, *flags = arguments
    command = command_line().get_command(None, verb)
    assert command is not None, f"there is no verb {verb!r}"
    params: dict[str, Any] = command.make_context(verb, list(flags)).params
    return params
