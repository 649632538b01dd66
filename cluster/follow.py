"""The fold for a reader of the stream that may have come late: what it was not told of changes nothing.

`apply` trusts that every entry is about something that it has seen. A reader of a running controller gets a
snapshot first, in parts with live entries between them, and a log may have lost its first segments.
"""

from __future__ import annotations

from mainspring.cluster.apply import apply
from mainspring.cluster.state import Cluster
from mainspring.messages.commands import Command
from mainspring.messages.events import Event


def follow(cluster: Cluster, now_ns: int, entry: Event | Command) -> None:
    """Enter an event or a command as `apply` does."""
    apply(cluster, now_ns, entry)
