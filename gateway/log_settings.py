"""Triton's settings of logging, as far as the gateway's own log has what they set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mainspring.gateway.oip.datatypes import Unfit, Unserved
from mainspring.gateway.oip.json_data import whole
from mainspring.messages.codes import Reason

_MOST = (1 << 31) - 1
_LOGGER = logging.getLogger("mainspring")
_CLASSES = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
_LOG_FIXED = {
    "log_file": ("", "the log goes to standard error, where what started the gateway keeps it"),
    "log_format": ("default", "the lines' form is --log-format's at the start"),
}
_LOG_NAMES = ("log_file", *_CLASSES, "log_verbose_level", "log_format")


def shown_log() -> dict[str, bool | int | str]:
    """Return what this process logs."""
    level = _LOGGER.getEffectiveLevel()
    return {
        "log_file": "",
        **{name: level <= each for name, each in _CLASSES.items()},
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def change_log(wanted: Mapping[str, Any]) -> None:
    """Log what is ``wanted`` from now on; null leaves a setting as it is. Raises `Unfit` or `Unserved`."""
    settings = shown_log()
    for name, value in wanted.items():
        if name not in settings:
            raise _wrong(f"there is no log setting {name[:100]!r}; there are {', '.join(_LOG_NAMES)}")
        if value is not None:
            settings[name] = _log_setting(name, value)
    verbose = bool(settings["log_verbose_level"])
    on = {logging.DEBUG: verbose, **{level: bool(settings[name]) for name, level in _CLASSES.items()}}
    level = next((level for level in sorted(on) if on[level]), logging.CRITICAL)
    gaps = [name for name, each in _CLASSES.items() if each > level and not on[each]]
    if gaps:
        raise Unserved(
            f"{gaps[0]} can't be off while what is less severe is logged: the log has all from one level on"
        )
    if level != _LOGGER.getEffectiveLevel():
        _LOGGER.setLevel(level)


def _log_setting(name: str, value: Any) -> bool | int | str:
    if name in _LOG_FIXED:
        fixed, why = _LOG_FIXED[name]
        if value != fixed:
            raise Unserved(f"the log setting {name} is always {fixed!r}: {why}")
        return fixed
    if name in _CLASSES:
        if not isinstance(value, bool):
            raise _wrong(f"the log setting {name} is {str(value)[:100]!r}; it is true or false")
        return value
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise _wrong(f"log_verbose_level is {str(value)[:100]!r}; it is a whole number from 0 to {_MOST}")
    return value


def _wrong(detail: str) -> Unfit:
    return Unfit(Reason.BAD_INPUT, detail)
