"""The format of durations and instants in stories."""

from __future__ import annotations

from mainspring.cluster.rolling import is_outlier
from mainspring.console.view.actions import Action
from mainspring.console.view.requests import Request


def outlying(took_ns: int, expected_ns: int) -> str:
    """Return, behind a comma, that an action took so much longer than expected that no estimate follows it;
    empty if it did not."""
    if not is_outlier(took_ns, expected_ns):
        return ""
    return f", {took_ns / max(1, expected_ns):.0f} times as long: an outlier, which no estimate follows alone"


def ms(duration_ns: int) -> str:
    """Return a duration in milliseconds, for a person."""
    return f"{duration_ns / 1e6:.1f} ms"


def at(instant_ns: int, found: Request) -> str:
    """Return an instant as the time since a request came."""
    return f"{(instant_ns - found.arrived_ns) / 1e6:+.1f} ms"


def than(difference_ns: int, more: str, less: str) -> str:
    """Return by how much something differed from what was predicted."""
    return f"{ms(abs(difference_ns))} {more if difference_ns >= 0 else less} than predicted"


def by_part(action: Action) -> str:
    """Say how much of an action's duration was the device's and the host's; empty if it is not known."""
    if not action.device_ns:
        return ""
    return f" ({action.device_ns / 1e6:.2f} ms on the device, {action.host_ns / 1e6:.2f} ms on the host)"
