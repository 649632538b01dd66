"""Query ``schedule``: what executors did, do and will do."""

from __future__ import annotations

from mainspring.console.payloads import Schedule
from mainspring.console.view.view import View


def schedule(
    view: View,
    from_ns: int,
    to_ns: int,
    *,
    after: int | None = None,
    workers: tuple[str, ...] = (),
    limit: int = 4000,
) -> Schedule:
    """Return the actions that lie in ``[from_ns, to_ns]``, at most ``limit``, the newest of them.

    ``after`` is the ``version`` of a former answer: only what changed since comes, unless that can't be told
    (`Schedule.whole`). ``workers`` are those to show, all if empty.
    """
    raise NotImplementedError
