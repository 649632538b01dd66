"""The command line: one verb for each file of ``cli/verbs/``, registered from a literal list.

``main`` turns whatever a verb raises into one line on stderr and an exit code, so that no verb prints a
traceback at a user: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.
``MAINSPRING_TRACEBACK=1`` shows the traceback. Verbs import what is heavy inside their functions, which
keeps ``--help`` quick.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mainspring import extras
from mainspring.__main__ import INTERRUPTED
from mainspring.cli.launcher.signals import ENDED_BY, interrupts_raise
from mainspring.cli.output import lenient, open_missing
from mainspring.messages.choices import nearest, one_of
from mainspring.messages.tables import OPTIONS

GROUPS = {
    "Serve": (
        *("doctor", "up", "scale", "demo", "compile", "zoo", "embeddings", "models", "graphs"),
        *("applications", "infer", "token", "keys", "balance"),
    ),
    "Look": ("status", "top", "explain", "log", "trace"),
    "Measure": ("profile", "replay", "simulate", "plan", "tune", "compare"),
    "Single processes": ("controller", "worker", "gateway", "console", "store"),
}
"""Modules of ``cli/verbs/`` under the headings and in the order in which help shows them."""
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)

FAILED = 1
ENDINGS: dict[object, str] = {INTERRUPTED: "interrupted", 128 + signal.SIGTERM: "terminated"}
"""Words for an end by a signal, by exit code."""


def build_app() -> typer.Typer:
    """Return the application with every verb of `VERBS` registered."""
    app = typer.Typer(
        name="mainspring",
        cls=ShortGroup,
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

    for heading, verbs in GROUPS.items():
        for verb in verbs:
            _add(app, verb)
        _put_under(app, heading, verbs)
    return app


def _add(app: typer.Typer, verb: str) -> None:
    """Add a verb: the function of its name in its file or, with verbs of its own, the file's ``app``."""
    module = importlib.import_module(f"mainspring.cli.verbs.{verb}")
    if hasattr(module, "app"):
        app.add_typer(module.app, name=verb)
    else:
        app.command(verb)(getattr(module, verb))


def _put_under(app: typer.Typer, heading: str, verbs: tuple[str, ...]) -> None:
    """Have help show verbs that are registered under a heading, each with help of its own that fits."""
    for command in app.registered_commands:
        if command.name in verbs:
            command.rich_help_panel, command.cls = heading, ShortCommand
    for group in app.registered_groups:
        if group.name in verbs:
            group.rich_help_panel, group.cls = heading, ShortGroup
            assert group.typer_instance is not None
            for command in group.typer_instance.registered_commands:
                command.cls = ShortCommand


def main() -> None:
    """Run the command line of this process and exit with its code."""
    open_missing()
    # Nobody who does not read what goes wrong keeps a verb from its result.
    sys.stderr = lenient(sys.stderr, 2, patience_s=None)
    code: object = 0
    try:
        app = build_app()
        interrupts_raise()
        app()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = _reader_gone()
    except Exception as error:
        if os.environ.get("MAINSPRING_TRACEBACK"):
            raise
        code = FAILED
        if not ENDED_BY:
            print(f"mainspring: {describe(error)}{_flag_for(error)}", file=sys.stderr)
    if ENDED_BY:
        code = 128 + ENDED_BY[0]
    if code in ENDINGS:
        print(f"mainspring: {ENDINGS[code]}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_gone()
    except OSError as error:
        code = _reader_gone()
        print(f"mainspring: what was to be printed could not be written: {error}", file=sys.stderr)
    sys.exit(code)  # type: ignore[arg-type]


def _reader_gone() -> int:
    """Drop what is left for a standard output that nobody reads (``mainspring models | head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def describe(error: BaseException) -> str:
    """Return one line for a person: an error of ours or of the system speaks for itself, a bug says so."""
    # The number of an error that names no file says nothing to a person.
    short = error.strerror if isinstance(error, OSError) and error.filename is None else None
    text = " ".join((short or str(error)).split())
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


def _flag_for(error: BaseException) -> str:
    """Return how to name another cluster, of an error that says that none is there."""
    if type(error).__name__ != "GatewayUnreachable":
        return ""
    names = "--address or MAINSPRING_ADDRESS names another"
    return f" {names}." if str(error).endswith("?") else f"; {names}"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed_version

        print(f"mainspring {installed_version('mainspring')}")
        raise typer.Exit


_BRACKET = re.compile(r"(?<!\\)\[(?=[a-z])")
_NO_CHOICE = re.compile(r"'([^']*)' is not one of ('.*')\.?$")
_ALSO_CALLED = {
    "--deadline": "--slo",
    "--gpu": "--device",
    "--gpus": "--device",
    "--time": "--duration",
    "--seconds": "--duration",
    "--verbose": "--log-level",
    "--debug": "--log-level",
}
"""Options that people write for a known one that looks otherwise."""
_LIKENESS = 0.75
"""Least likeness of an option that is suggested."""
_SHORTEST, _NAMED = 4, 3
"""Least length of an option, with its dashes, whose beginning says which is meant; verbs that are named."""
WORDS: dict[object, str] = {Path: "PATH", str: "TEXT", int: "N", float: "X", bool: ""}
"""Placeholder of a value, by its type; a flag takes none."""


class ShortCommand(TyperCommand):
    """A verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; for an invalid value, the error says which was meant."""
        try:
            self._check_paths(ctx, args)
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if (found := _NO_CHOICE.search(error.message)) is not None:
                known = re.findall("'([^']*)'", found[2])
                error.message = f"{found[1]!r} is not one of {one_of(found[1], known)}"
            raise
        except Exception as error:
            _tell_of_option(ctx, self, error)
            raise

    def _check_paths(self, ctx: Any, args: list[str]) -> None:
        """Refuse a path that is empty, which means the working folder to the system, or ``-``."""
        given = self.make_parser(ctx).parse_args(args=list(args))[0]
        parameters: Iterable[Any] = self.get_params(ctx)
        for parameter in parameters:
            found = given.get(parameter.name)
            for path in found if isinstance(found, list | tuple) else [found]:
                if path in ("", "-") and _kind(parameter) is Path:
                    why = "nothing is read from or written to it" if path else "an empty path names nothing"
                    raise typer.BadParameter(
                        f"{path!r} is not a path here, {why}; give a file or folder", ctx, parameter
                    )

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with short words for types."""
        _shorten(self, self.get_params(ctx))
        super().format_help(ctx, formatter)


class ShortGroup(TyperGroup):
    """A verb that has verbs of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the verb's; of one that there is not, the error says which was meant."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _tell_of_option(ctx, self, error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that is meant; for one that has gone, raise an error with what is there."""
        if args and (instead := _instead(ctx, args[0])):
            raise typer.BadParameter(instead)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with short words for types."""
        _shorten(self, self.get_params(ctx))
        super().format_help(ctx, formatter)


def _instead(ctx: Any, word: str) -> str:
    """Return what to do in place of an option or verb that has gone; empty for any other word."""
    # Of more than one word itself where it is `python -m mainspring`.
    program = ctx.find_root().command_path
    typed = f"{ctx.command_path.removeprefix(program).strip()} {word}"
    return f"there is no {word} any more: {OPTIONS[typed]}" if typed in OPTIONS else ""


def _tell_of_option(ctx: Any, command: Any, error: Exception) -> None:
    """Have an error of an option that there is not say which is meant, or which verbs have it."""
    wrong = getattr(error, "option_name", "")
    if instead := _instead(ctx, wrong):
        raise typer.BadParameter(instead) from None
    if not hasattr(error, "possibilities"):
        return
    program, known = ctx.find_root().command_path, _options(command)
    called = [wrong, _ALSO_CALLED.get(wrong, wrong)]
    begun = [each for word in called if len(word) > _SHORTEST for each in known if each.startswith(word)]
    near = min(begun, key=len, default="") or nearest(called[1], known, _LIKENESS)
    others = [name for name, each in _all_verbs(ctx.find_root().command) if wrong in _options(each)]
    hint = f"`{ctx.command_path} -h` lists those that there are"
    if near:
        hint = f"did you mean {near}?"
    elif others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        hint = ", ".join(f"`{program} {each}`" for each in others[:_NAMED]) + f"{more} would take it"
    shown: Any = error
    shown.message, shown.possibilities = f"{ctx.command_path} has no option {wrong}; {hint}", None


def _options(command: Any) -> list[str]:
    return [name for each in command.params for name in (*each.opts, *each.secondary_opts) if name[:1] == "-"]


def _all_verbs(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each verb, and what stands below it, with the words that name it."""
    for name, command in group.commands.items():
        yield path + name, command
        if hasattr(command, "commands"):
            yield from _all_verbs(command, f"{path}{name} ")


def _shorten(command: Any, parameters: Iterable[Any]) -> None:
    """Give each option that says nothing of its own the word for its type; keep names of tables, as [worker].

    What stands in brackets is markup to rich, which leaves unknown markup out.
    """
    for each in (command, *getattr(command, "commands", {}).values(), *parameters):
        if each.help:
            each.help = _BRACKET.sub(r"\\[", each.help)
    for parameter in parameters:
        kind = _kind(parameter)
        if parameter.param_type_name == "option" and parameter.metavar is None and kind in WORDS:
            parameter.metavar = WORDS[kind]


def _kind(parameter: Any) -> Any:
    """Return the Python type of a parameter's value, or of each of its values; None if that is not told."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None:
        # Releases of typer that describe types otherwise have short words themselves.
        return Path if hasattr(getattr(parameter, "type", None), "path_type") else None
    annotation = described.annotation
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is list else annotation
