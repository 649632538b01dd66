"""The command line: one verb for each file of ``commands/``, registered from a literal list.

``main`` turns whatever a verb raises into one line on stderr and an exit code, so that no verb prints a
traceback at a user: 0 done, 1 failed, 2 wrong usage, 130 interrupted. ``MAINSPRING_TRACEBACK=1`` shows
the traceback. Verbs import what is heavy inside their functions, which keeps ``--help`` quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from mainspring import extras

VERBS = (
    "doctor",
    "up",
    "demo",
    "compile",
    "zoo",
    "profile",
    "models",
    "status",
    "infer",
    "replay",
    "simulate",
    "compare",
    "log",
    "trace",
    "controller",
    "worker",
    "gateway",
    "console",
    "top",
    "explain",
    "token",
)
"""Modules of ``commands/`` in the order in which help shows them."""

FAILED = 1


def build_app() -> typer.Typer:
    """Return the application with every verb of `VERBS` registered."""
    app = typer.Typer(
        name="mainspring",
        help="Serves deep-learning models and answers every request on time, or says that it can't as soon "
        "as it knows.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        _version: Annotated[
            bool,
            typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
        ] = False,
    ) -> None:
        pass

    for verb in VERBS:
        importlib.import_module(f"mainspring.commands.{verb}").register(app)
    return app


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        build_app()()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`mainspring models | head`): nothing to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:
        if os.environ.get("MAINSPRING_TRACEBACK"):
            raise
        print(f"mainspring: {describe(error)}", file=sys.stderr)
        sys.exit(FAILED)


def describe(error: BaseException) -> str:
    """Return one line for a person: an error of ours or of the system speaks for itself, a bug says so."""
    text = " ".join(str(error).split())
    missing = extras.missing(error)
    if missing:
        return missing
    expected = isinstance(error, OSError) or type(error).__module__.startswith("mainspring.")
    if expected and text:
        return text
    return (
        f"internal error, please report it: {type(error).__name__}: {text} "
        "(MAINSPRING_TRACEBACK=1 shows where)"
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mainspring {installed_version('mainspring')}")
        raise typer.Exit
