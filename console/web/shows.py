"""The shows that a page can ask for: the queries, each with its parameters, their defaults and their
bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from mainspring.console.queries.applications import applications
from mainspring.console.queries.asking import BadQuery, Unknown, recent
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import model, models
from mainspring.console.queries.request import request
from mainspring.console.queries.schedule import schedule
from mainspring.console.queries.worker import memory, worker
from mainspring.console.view.view import View
from mainspring.console.web.guard import encode
from mainspring.messages.choices import did_you_mean

_MS = 1_000_000
_LONGEST_NAME = 512
_MOST_WORKERS = 256
_MOST_ACTIONS = 8_000

Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
Instant = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
Sort = Literal[
    "name",
    "queued",
    "demand",
    "in_time",
    "late",
    "rejected",
    "cold",
    "pages",
    "resident",
    "last_load",
    "loads",
    "evictions",
]
Outcome = Literal["in_time", "late", "rejected", "cancelled", "lost"]


class BadParams(ValueError):
    """A page asked for what can't be shown to anybody; the text says what would be right."""


def _check_span(from_ns: int | None, to_ns: int | None) -> None:
    """Raise ValueError unless both instants are there, in their order, or neither is."""
    if (from_ns is None) != (to_ns is None):
        raise ValueError("give both from_ns and to_ns for a time that stands still, or neither")
    if from_ns is not None and to_ns is not None and from_ns > to_ns:
        raise ValueError(f"from_ns, {from_ns}, must not be after to_ns, {to_ns}")


class ClusterParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``cluster``."""

    recent: Annotated[int, Meta(ge=0, le=200)] = 50
    """Rejected and late requests listed at most."""


class ApplicationsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``applications``: it has none."""


class MemoryParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``memory``."""

    worker: Name
    evictions: Annotated[int, Meta(ge=0, le=1_000)] = 100
    """Evictions listed at most."""


class ScheduleParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``schedule``: the time around the present, or between two instants if both are there."""

    back_ms: Annotated[float, Meta(gt=0, le=600_000)] = 10_000.0
    ahead_ms: Annotated[float, Meta(ge=0, le=600_000)] = 1_000.0
    from_ns: Instant | None = None
    to_ns: Instant | None = None
    workers: Annotated[tuple[Name, ...], Meta(max_length=_MOST_WORKERS)] = ()
    """Workers to show; all if there are none."""
    limit: Annotated[int, Meta(ge=1, le=_MOST_ACTIONS)] = 4_000
    """Actions in one picture; of more the newest come."""

    def __post_init__(self) -> None:
        """Check the values together."""
        _check_span(self.from_ns, self.to_ns)


class ModelsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``models``."""

    search: Annotated[str, Meta(max_length=_LONGEST_NAME)] = ""
    """Text that names must contain."""
    sort: Sort = "name"
    descending: bool = False
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ModelParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``model``."""

    name: Name


class RequestParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``request``."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    """Its id, the beginning of one, or ``last-rejected``, ``last-late``, ``last-lost`` or ``last``."""


class RecentParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``recent``."""

    outcomes: Annotated[tuple[Outcome, ...], Meta(min_length=1, max_length=5)] = ("rejected", "late", "lost")
    model: Annotated[str, Meta(max_length=_LONGEST_NAME)] = ""
    """Model whose requests are shown; empty for all models."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    from_ns: Instant | None = None
    to_ns: Instant | None = None
    """End of ``[from_ns, to_ns)``, the span in which the requests ended; None: they are of any time."""

    def __post_init__(self) -> None:
        """Check the values together."""
        _check_span(self.from_ns, self.to_ns)


class WorkerParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of ``worker``."""

    name: Name


class Broken(Exception):
    """A show could not be made, through no fault of who asked."""


class Asked(NamedTuple):
    """A show that was asked for, its parameters found sound."""

    show: str
    values: Any
    """An instance of the struct of its parameters."""
    params: bytes
    """The same as JSON, with the defaults: equal for all who ask for the same."""


def _schedule(view: View, params: ScheduleParams, after: int | None) -> Any:
    if params.from_ns is not None and params.to_ns is not None:
        begin_ns, end_ns = params.from_ns, params.to_ns
    else:
        begin_ns = view.now_ns - round(params.back_ms * _MS)
        end_ns = view.now_ns + round(params.ahead_ms * _MS)
    return schedule(view, begin_ns, end_ns, after=after, workers=params.workers, limit=params.limit)


class Show(NamedTuple):
    """One thing that can be shown."""

    params: type[msgspec.Struct]
    make: Callable[[View, Any, int | None], Any]
    """Given the parameters, and the version after which the changes suffice, if there is one."""


SHOWS: dict[str, Show] = {
    "cluster": Show(ClusterParams, lambda view, params, _: cluster(view, recent=params.recent)),
    "applications": Show(ApplicationsParams, lambda view, _params, _: applications(view)),
    "memory": Show(
        MemoryParams, lambda view, params, _: memory(view, params.worker, evictions=params.evictions)
    ),
    "schedule": Show(ScheduleParams, _schedule),
    "models": Show(
        ModelsParams,
        lambda view, params, _: models(
            view,
            search=params.search,
            sort=params.sort,
            descending=params.descending,
            offset=params.offset,
            limit=params.limit,
        ),
    ),
    "model": Show(ModelParams, lambda view, params, _: model(view, params.name)),
    "request": Show(RequestParams, lambda view, params, _: request(view, params.id)),
    "recent": Show(
        RecentParams,
        lambda view, params, _: recent(
            view,
            outcomes=params.outcomes,
            model=params.model,
            limit=params.limit,
            from_ns=params.from_ns,
            to_ns=params.to_ns,
        ),
    ),
    "worker": Show(WorkerParams, lambda view, params, _: worker(view, params.name)),
}


def ask(show: str, params: Mapping[str, object], *, text: bool = False) -> Asked:
    """Return what is asked for; raise `BadParams`. With ``text``, values are texts of a query string."""
    found = SHOWS.get(show)
    if found is None:
        raise BadParams(f"there is no show {show[:100]!r}{_suggestion(show, SHOWS)}")
    try:
        values = msgspec.convert(params, found.params, strict=not text)
    except msgspec.ValidationError as error:
        raise BadParams(f"show {show!r}: {explained(str(error), found.params)}") from None
    return Asked(show, values, encode(values))


def make(view: View, asked: Asked, after: int | None = None) -> Any:
    """Return the payload; of a schedule only what changed ``after`` a version.

    Raises `Unknown` and `BadQuery` of `console.queries.asking`, and `Broken` if there is an error in the
    query, so that one show can't take the others with it.
    """
    try:
        return SHOWS[asked.show].make(view, asked.values, after)
    except (BadQuery, Unknown):
        raise
    except Exception as error:
        raise Broken(f"show {asked.show!r} could not be made; the console's log says why") from error


def explained(error: str, struct: type[msgspec.Struct]) -> str:
    """Return msgspec's words on a value for a person, with the nearest key instead of an unknown one."""
    unknown = re.search(r"unknown field `(.*)`", error)
    if unknown is not None:
        key = unknown.group(1)
        return f"there is no {key[:100]!r}{_suggestion(key, struct.__struct_fields__)}"
    missing = re.search(r"missing required field `(.*)`", error)
    if missing is not None:
        return f"it needs {missing.group(1)!r}"
    text, _, path = error.partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    return f"{where}: {text[0].lower()}{text[1:]}" if where else text


def _suggestion(name: str, known: Any) -> str:
    return did_you_mean(name, known, f"there are {', '.join(known)}")
