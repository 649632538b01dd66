"""Sources of `mainspring explain` (a log, a running console, live) and `mainspring trace` (a log, live)."""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from mainspring.cli.launcher.signals import stopping
from mainspring.cli.places import Door
from mainspring.console.live import Following, LiveStream
from mainspring.console.payloads import Story
from mainspring.console.perfetto import TraceFile, Tracer
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.queries.request import LAST, check, explained
from mainspring.console.queries.request import request as explain_request
from mainspring.console.view.series import SECOND_NS, Limits
from mainspring.console.view.view import View
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.observing import Stage
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.runs import LogProblem, Run, read_run, wall

CONNECT_NS = 10_000_000_000
"""Time for which a controller is waited for that does not answer."""
POLL_NS = 100_000_000


def trace_log(run: Run, from_ns: int, to_ns: int, output: Path) -> TraceFile:
    """Write the part ``[from_ns, to_ns)`` of a run; raise OSError if something can't be read or written."""
    about = {
        "log": str(run.paths[0].parent),
        "policy": run.policy,
        "began": run.wall(from_ns),
        "unix_ns": run.unix_ns(from_ns),
    }
    with _file(output, about) as file:
        tracer = Tracer(file)
        begun = False
        for now_ns, entry in read_run(run):
            if isinstance(entry, SegmentHeader):
                continue
            if now_ns >= to_ns:
                break
            if now_ns >= from_ns and not begun:
                tracer.begin(from_ns)
                begun = True
            tracer.take(now_ns, entry)
        if not begun:
            raise LogProblem(f"{run.paths[0].parent} has no record between --from and --to")
        tracer.finish()
    return file


def trace_live(door: Door, output: Path, duration_ns: int) -> TraceFile:
    """Watch a controller for this long, or until Ctrl-C; raise `LogProblem` if it can't be reached.

    If its connection ends meanwhile, the trace does: what happened until it is back is not known.
    """
    controller = door.address
    stream = LiveStream(controller, "trace", keys=door.keys())
    try:
        with (
            stopping() as stop,
            _file(output, {"controller": controller, "began": wall(time.time_ns())}) as file,
        ):
            tracer = Tracer(file)
            begun_ns = None
            give_up_ns = time.monotonic_ns() + CONNECT_NS
            while not stop.is_set():
                batch = stream.poll(POLL_NS)
                if begun_ns is None and stream.state == "connecting" and time.monotonic_ns() > give_up_ns:
                    raise LogProblem(_unanswered(controller, stream.detail))
                if begun_ns is not None and (
                    stream.state != "live" or (batch is not None and batch.stage is Stage.BEGIN)
                ):
                    break
                if batch is not None:
                    for now_ns, entry in batch.records:
                        tracer.take(now_ns, entry)
                    if batch.stage is Stage.END and begun_ns is None:
                        begun_ns = batch.now_ns
                        tracer.begin(begun_ns)
                    if begun_ns is not None and batch.now_ns >= begun_ns + duration_ns:
                        break
            if begun_ns is None:
                raise LogProblem(f"stopped before {controller} had said how things stand")
            tracer.finish()
        return file
    finally:
        stream.close()


@contextmanager
def _file(output: Path, about: dict[str, Any]) -> Iterator[TraceFile]:
    """Write a trace file that is there only if it is whole."""
    file = TraceFile(output, about)
    try:
        yield file
        file.close()
    except BaseException:
        file.abandon()
        raise


LOOKED_AFTER = 2_000
"""Records of a log between two checks whether the request has ended."""
ANSWER_S = 10.0
"""Time in which a console must answer."""


class NotFound(Exception):
    """The story can't be told; the text says why and where else to look."""


class NoConsole(Exception):
    """Nobody answers there."""


class _Answer(msgspec.Struct):
    data: Story


class _Error(msgspec.Struct):
    text: str


class _Failure(msgspec.Struct):
    error: _Error


def refuse_unlike(which: str) -> None:
    """Raise `NotFound` for a text that can name no request, before anybody is asked for it."""
    try:
        check(which)
    except BadQuery as error:
        raise NotFound(str(error)) from None


def from_log(run: Run, which: str) -> Story:
    """Return the story of a request of a recorded run; raise `NotFound`."""
    try:
        if which in LAST:
            return explain_request(_played(run, None), which)
        request_id = _only(run, which)
        return explain_request(_played(run, request_id), str(request_id))
    except (Unknown, BadQuery, LogProblem) as error:
        raise NotFound(str(error)) from error


def from_console(url: str, which: str, token: str | None) -> Story:
    """Return the story that a running console tells; raise `NoConsole` if none answers, `NotFound`."""
    query = urllib.parse.urlencode({"id": which})
    asked = urllib.request.Request(f"{url.rstrip('/')}/api/request?{query}")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(), type=_Answer).data
    except urllib.error.HTTPError as error:
        raise NotFound(f"the console at {url} says: {_told(error.read(), str(error))}") from error
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise NoConsole(f"no console answers at {url} ({error})") from error


def live(door: Door, which: str, patience_ns: int) -> Story:
    """Return the story of a request that waits or runs now, or ends while the controller is watched.

    A controller does not report what is over. Raises `NotFound`, and ValueError for a bad address.
    """
    view, stream = (
        View(Limits(keep_ns=60 * SECOND_NS)),
        LiveStream(door.address, "explain", keys=door.keys()),
    )
    following = Following(view)
    until_ns = time.monotonic_ns() + patience_ns
    try:
        with stopping() as stop:
            while not stop.is_set() and time.monotonic_ns() < until_ns:
                batch = stream.poll(POLL_NS)
                if batch is None or stream.state == "connecting":
                    continue
                following.take(batch)
                if stream.state == "live" and explained(view, which):
                    return explain_request(view, which)
    finally:
        stream.close()
    if stream.state != "live" and not view.seq:
        raise NotFound(_unanswered(door.address, stream.detail))
    raise NotFound(_unheard(view, which))


def _unanswered(address: str, detail: str) -> str:
    """Return what to do where no controller answers."""
    return (
        f"no controller answers at {address}: is `mainspring up` running? ({detail}); "
        "--address or --controller names another"
    )


def _unheard(view: View, which: str) -> str:
    """Return why nothing can be said of a request that was not heard of."""
    try:
        explain_request(view, which)
    except (Unknown, BadQuery) as error:
        return (
            f"{error}. A controller shows what waits, runs and arrives, not what has ended: ask a console "
            "that ran before it (--console URL), or the event log (--log DIR)"
        )
    return f"request {which} has not ended"


def _played(run: Run, request_id: int | None) -> View:
    """Return a view of a run: at its end, or when the request had ended."""
    view = View(Limits(keep_ns=max(300 * SECOND_NS, run.last_ns - run.first_ns + SECOND_NS)))
    query = False
    for count, (now_ns, entry) in enumerate(read_run(run)):
        view.take(now_ns, entry)
        query = query or (isinstance(entry, QueryArrived) and entry.query_id == request_id)
        if request_id is None or count % LOOKED_AFTER:
            continue
        if view.traffic.ended.get(request_id) or (query and request_id not in view.cluster.queries):
            break
    return view


def _only(run: Run, which: str) -> int:
    """Return the id of the only request or query of a run that has these digits, or whose id begins with
    them."""
    check(which)
    found: dict[int, None] = {}
    for _, entry in read_run(run):
        if isinstance(entry, RequestArrived | QueryArrived):
            id_ = entry.request_id if isinstance(entry, RequestArrived) else entry.query_id
            if str(id_) == which:
                return id_
            if str(id_).startswith(which):
                found[id_] = None
    if not found:
        raise Unknown(f"no request of run {run.number} has the id {which}, or one that begins so")
    if len(found) > 1:
        some = ", ".join(map(str, [*found][:5]))
        raise BadQuery(f"{len(found)} requests' ids begin with {which}: {some} and so on; give more of it")
    return next(iter(found))


def _told(body: bytes, otherwise: str) -> str:
    try:
        return msgspec.json.decode(body, type=_Failure).error.text
    except msgspec.MsgspecError:
        return otherwise


def tell(story: Story, console: Console) -> None:
    """Print a story: the sentence, what happened, and what each worker could have done."""
    console.print(f"request {story.id} for {story.model}: {story.outcome}", soft_wrap=True)
    console.print(story.summary, soft_wrap=True)
    console.print()
    steps = Table(box=None, pad_edge=False, show_header=False)
    steps.add_column(justify="right", no_wrap=True)
    steps.add_column(no_wrap=True)
    steps.add_column(overflow="fold")
    for step in story.steps:
        steps.add_row(_after(step.at_ns, story), step.what, step.text)
    console.print(steps)
    if not story.alternatives:
        return
    console.print()
    console.print(
        f"What each worker could have done, as it was predicted at {_after(story.decided_ns, story)}:"
    )
    options = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        options.add_column(no_wrap=True)
    options.add_column(overflow="fold")
    for each in story.alternatives:
        verdict = "chosen" if each.chosen else "in time" if each.feasible else "too late"
        if each.finish_ns is None:
            verdict = "could not"
        options.add_row(each.worker, verdict, each.text)
    console.print(options)
    if story.more:
        console.print(f"and {story.more} more workers")


def _after(instant_ns: int, story: Story) -> str:
    return f"{(instant_ns - story.arrived_ns) / 1e6:+.1f} ms"
