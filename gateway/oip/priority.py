"""Which priority a request has. Pure.

Triton's clients send the parameter ``priority``: 1 is the highest, and 0 means that there is none.
"""

from __future__ import annotations

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.messages.codes import Reason

PRIORITY_PARAMETER = "priority"
_LOWEST = (1 << 31) - 1


def priority_of(value: object) -> int:
    """Return the priority that a parameter says, as it came; raise `Unfit` for what is none."""
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unfit(
            Reason.BAD_INPUT,
            f"the parameter {PRIORITY_PARAMETER} is {str(value)[:40]!r}; it is a whole number, 1 for the "
            "highest and 0 for none",
        )
    return min(value, _LOWEST)
