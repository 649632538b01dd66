"""A request's version, priority and deadline, in the ways in which clients give them. Pure.

Triton's clients send the parameter ``priority``: 1 is the highest, and 0 means that there is none. With
``sequence_id``, a number or a text, they say which sequence a request belongs to, and with the truth values
``sequence_start`` and ``sequence_end`` that it is the first or the last of it.

A client may give several deadlines: Triton's request parameter ``timeout`` in microseconds, the parameter
``slo_ms``, the header ``x-mainspring-slo-ms``, and gRPC's own deadline. The nearest one counts. A client that
gives none gets the model's default, or else the server's; without those the request is best effort. All count
from the moment at which the gateway had the request's first bytes to the reply on the wire.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.json_data import whole
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.durations import LONGEST_NS
from mainspring.messages.model import ModelSpec
from mainspring.messages.served import ServedModel

SLO_HEADER = "x-mainspring-slo-ms"
"""HTTP header, or gRPC metadata, with an SLO in milliseconds."""
SLO_PARAMETER = "slo_ms"
TIMEOUT_PARAMETER = "timeout"
_LONGEST_TEXT = 400
"""Characters of a number; as many as a float has at most."""
PRIORITY_PARAMETER = "priority"
AT_LEAST_PARAMETER = "at_least"
CONTEXT_PARAMETER = "context"
SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")
_LOWEST = (1 << 31) - 1
_HIGHEST = 10**18 - 1
"""Version."""
_IDS = "a number is from 1 to 18446744073709551615, or 0 for none"


def version_of(text: str) -> int | None:
    """Return a version by its text; None for the default, which is empty text. Raises `Unfit`."""
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_HIGHEST)) and int(text) > 0:
        return int(text)
    raise Unfit(
        Reason.BAD_INPUT,
        f"the model's version is {text[:40]!r}; it is a whole number from 1 to {_HIGHEST}, or empty",
        f"failed to get model version from specified version string '{text[:40]}', version should be an "
        "integral value > 0",
    )


def priority_of(value: object) -> int:
    """Return the priority that a parameter says, as it came; raise `Unfit` for what is none."""
    if value is None:
        return 0
    value = whole(value)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _LONGEST_TEXT:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unfit(
            Reason.BAD_INPUT,
            f"the parameter {PRIORITY_PARAMETER} is {str(value)[:40]!r}; it is a whole number, 1 for the "
            "highest and 0 for none",
        )
    return min(value, _LOWEST)


def at_least_of(value: object) -> float:
    """Return the least score that a parameter says, as it came; raise `Unfit` for what is none."""
    if value is None:
        return 0.0
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (OverflowError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 <= found < math.inf:
        detail = f"{AT_LEAST_PARAMETER} is {_shown(value)}; it is a score of the family, such as 0.75"
        raise Unfit(Reason.BAD_INPUT, f"the parameter {detail}")
    return found


def context_of(value: object) -> str:
    """Return the context that a parameter says, as it came; raise `Unfit` for what is not text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        detail = f"{CONTEXT_PARAMETER} is {_shown(value)}; it is text that names a user or a session"
        raise Unfit(Reason.BAD_INPUT, f"the parameter {detail}")
    return value


def member_of(timing: Timing) -> str:
    """Return the member of a family that answered; empty of other models, and of larger graphs."""
    return timing.steps[0].model if len(timing.steps) == 1 else ""


class Place(NamedTuple):
    """The position of a request in a sequence."""

    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


NOWHERE = Place()


def place_of(spec: ModelSpec, sequence_id: object, start: object, end: object) -> Place:
    """Return what the parameters of sequences say, as they came; raise `Unfit` for what they can't be.

    Of a model whose requests do not come in sequences they say nothing, as with Triton.
    """
    if spec.sequencing is None:
        return NOWHERE
    sequence_id = 0 if sequence_id is None else whole(sequence_id)
    if isinstance(sequence_id, bool) or not isinstance(sequence_id, int | str):
        raise Unfit(
            Reason.BAD_INPUT, f"the parameter sequence_id is {_shown(sequence_id)}; it is a number or a text"
        )
    flags = []
    for name, value in zip(SEQUENCE_PARAMETERS[1:], (start, end), strict=True):
        if value is not None and not isinstance(value, bool):
            raise Unfit(Reason.BAD_INPUT, f"the parameter {name} is {_shown(value)}; it is true or false")
        flags.append(bool(value))
    if isinstance(sequence_id, int) and not 0 <= sequence_id < 1 << 64:
        raise Unfit(Reason.BAD_INPUT, f"the parameter sequence_id is {_shown(sequence_id)}; {_IDS}")
    return Place(sequence_id, *flags)


def default_slo_ns(config: GatewayConfig, options: ServedModel, priority: int = 0) -> int | None:
    """Return the SLO of requests for a model that bring none; None for best effort.

    ``options`` are the model's own: a repository (for each ``priority``, too) or an operator may say it
    there, the gateway's configuration for any. It is at most what a client may ask for.
    """
    own_ns = options.slo_ns
    if options.priority_slos_ns:
        own_ns = options.priority_slos_ns.get(options.priority_of(priority), own_ns)
    if own_ns:
        return min(own_ns, milliseconds(config.max_slo_ms))
    default_ms = config.model_slo_ms.get(options.name, config.default_slo_ms)
    return None if default_ms is None else milliseconds(default_ms)


def slo_ns(
    *,
    timeout_us: object = None,
    slo_ms: object = None,
    header: str | None = None,
    left_ns: int | None = None,
    default_ns: int | None = None,
) -> int | None:
    """Return the time from arrival to the deadline; None for best effort.

    ``timeout_us`` and ``slo_ms`` are the request's parameters as they came, ``header`` the header's text,
    ``left_ns`` what gRPC's deadline leaves, ``default_ns`` what counts if there is none of them. A timeout
    of 0 is none, as Triton has it. Raises `Unfit` for what is not a duration.
    """
    nearest = left_ns
    if timeout_us is not None and timeout_us != 0:
        nearest = _nearer(nearest, _timeout_ns(timeout_us))
    if slo_ms is not None:
        nearest = _nearer(nearest, _milliseconds_ns(f"the parameter {SLO_PARAMETER}", slo_ms))
    if header is not None:
        nearest = _nearer(nearest, _milliseconds_ns(f"the header {SLO_HEADER}", header))
    return default_ns if nearest is None else nearest


def _nearer(one: int | None, other: int) -> int:
    return other if one is None or other < one else one


def _timeout_ns(value: object) -> int:
    if not isinstance(value, int):
        value = whole(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_TEXT:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unfit(
            Reason.BAD_SLO,
            f"the parameter {TIMEOUT_PARAMETER} is {_shown(value)}; it is a whole number of microseconds, "
            "0 for none",
        )
    return min(value * 1_000, LONGEST_NS)


def _milliseconds_ns(what: str, value: object) -> int:
    given = value
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < _LONGEST_TEXT else None
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Unfit(
            Reason.BAD_SLO, f"{what} is {_shown(given)}; it is a number of milliseconds, greater than 0"
        )
    return min(round(min(value, LONGEST_NS) * 1e6) or 1, LONGEST_NS)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
