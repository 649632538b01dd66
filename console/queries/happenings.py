"""What happened to workers and to the controller, as pictures show it."""

from __future__ import annotations

from itertools import islice

from mainspring.console.payloads import HappeningLine
from mainspring.console.view.view import View

HAPPENINGS = 50
"""Things that happened which a picture shows at most."""


def happenings(view: View, workers: tuple[str, ...] = ()) -> list[HappeningLine]:
    """Return the newest of what happened to the controller and to these workers, all workers if empty."""
    found = (
        HappeningLine(at_ns, each.kind, each.worker, each.text)
        for at_ns, each in view.happened()
        if not workers or not each.worker or each.worker in workers
    )
    return list(islice(found, HAPPENINGS))
