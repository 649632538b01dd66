"""A check that a scheduling policy and its options exist, before anything is started for it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence

from mainspring.messages.tables import ConfigError
from mainspring.scheduler.policies.options import read_options
from mainspring.scheduler.policies.registry import policy_class

Option = bool | int | float | str


def check_policy(name: str, options: Mapping[str, Option] | None = None) -> None:
    """Raise `ConfigError` if there is no policy of this name, or it has no such options.

    ``package.module:Class`` is found in the current folder too, as it is by the processes that are started.
    """
    if ":" in name and "" not in sys.path:
        sys.path.append("")
    try:
        read_options(name, policy_class(name).Options, options or {})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse_options(texts: Sequence[str]) -> dict[str, Option]:
    """Return ``key=value`` texts as a policy's options; a value is read as TOML, or is a plain text.

    Raises `ConfigError` for one without a key or a value.
    """
    options: dict[str, Option] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"a policy's option is given as key=value, not {text!r}")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        options[key] = parsed if isinstance(parsed, bool | int | float | str) else value
    return options
