"""Help whose column of types is narrow, so that 80 columns leave room for the sentences beside it."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

WORDS: dict[object, str] = {Path: "PATH", str: "TEXT", int: "N", float: "X", bool: ""}
"""What stands for a value of a type; a flag takes none."""


class ShortCommand(TyperCommand):
    """A verb."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with short words for types."""
        _shorten(self.get_params(ctx))
        super().format_help(ctx, formatter)


class ShortGroup(TyperGroup):
    """A verb that has verbs of its own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with short words for types."""
        _shorten(self.get_params(ctx))
        super().format_help(ctx, formatter)


def _shorten(parameters: Iterable[Any]) -> None:
    """Give each option that says nothing of its own the word for its type."""
    for parameter in parameters:
        # Releases of typer that describe types otherwise have short words themselves.
        described = getattr(parameter, "type_descriptor", None)
        annotation = getattr(described, "annotation", None)
        if typing.get_origin(annotation) is list:
            annotation = typing.get_args(annotation)[0]
        if parameter.param_type_name == "option" and parameter.metavar is None and annotation in WORDS:
            parameter.metavar = WORDS[annotation]
