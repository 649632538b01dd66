"""The view that is shown, its position, and the effect of each key. Pure: keys and a `View` in, lines out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rich.text import Text

from mainspring.console.payloads import Head, ModelLine, Models
from mainspring.console.queries.asking import Unknown
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import SORTS, models
from mainspring.console.queries.schedule import in_order, schedule
from mainspring.console.queries.worker import memory
from mainspring.console.terminal.cluster import cluster_lines, memory_lines, schedule_lines
from mainspring.console.terminal.lines import Column, ago, cut, milliseconds, number, table
from mainspring.console.view.view import View

_COLUMNS = (
    Column("model", 18),
    Column("where", 11),
    Column("queue", 5, right=True),
    Column("req/s", 6, right=True),
    Column("late", 4, right=True),
    Column("reject", 6, right=True),
    Column("cold", 5, right=True),
    Column("load/m", 6, right=True),
    Column("evict/m", 7, right=True),
    Column("in time", 7, right=True),
    Column("p99 ms", 7, right=True),
    Column("pages", 5, right=True),
    Column("loaded", 7, right=True),
    Column("SLO ms", 7, right=True),
    Column("ms by batch", 0),
)


def models_lines(found: Models, width: int, now_ns: int, asked: str) -> list[Text]:
    """Return a line about what was asked for (``asked``), a header, and a line for each model."""
    shown = f"{found.offset + 1:,}-{found.offset + len(found.rows):,} of " if found.rows else ""
    first = Text(cut(f"{shown}{found.total:,} models, {asked}", width))
    styles = ["red" if each.failed_on else "yellow" if each.thrashes else "" for each in found.rows]
    return [first, *table(_COLUMNS, [_row(each, now_ns) for each in found.rows], width, styles)]


def _row(line: ModelLine, now_ns: int) -> tuple[str, ...]:
    times = " ".join(f"{size}:{milliseconds(ms)}" for size, ms in sorted(line.infer_ms.items()))
    return (
        line.name,
        _where(line),
        f"{line.queued:,}",
        number(line.demand_rps),
        f"{line.late:,}{'~' if line.erratic else ''}",
        f"{line.rejected:,}",
        f"{line.cold:,}",
        f"{line.loads_pm:,.0f}",
        f"{line.evictions_pm:,.0f}{'!' if line.thrashes else ''}",
        f"{line.in_time:,}",
        milliseconds(line.p99_ms),
        f"{line.pages:,}{'*' if line.pinned else ''}",
        ago(line.last_load_ns, now_ns),
        milliseconds(line.slo_ms),
        times,
    )


def _where(line: ModelLine) -> str:
    """Return where a model is, the best first: resident, loading, prepared, failed."""
    if line.resident_on:
        more = f"+{len(line.resident_on) - 1}" if len(line.resident_on) > 1 else ""
        return f"{line.resident_on[0]}{more}"
    if line.loading_on:
        return f"loads {line.loading_on[0]}"
    if line.prepared_on:
        return f"prep on {line.prepared_on}"
    return f"failed on {line.failed_on}" if line.failed_on else "nowhere"


ViewName = Literal["cluster", "memory", "schedule", "models"]
VIEWS: tuple[ViewName, ...] = ("cluster", "memory", "schedule", "models")
FRAME_LINES = 3
"""Lines of the screen outside the view: head, tabs, keys."""
SPANS_MS = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
"""Lengths of the schedule that zooming goes through."""
AHEAD = 0.3
"""Share of the schedule's span that is behind now."""
MODELS_ASKED = 200
"""Models asked for at once: more than any screen has lines."""
_SCROLLING = ("up", "down", "k", "j", "page up", "page down", "home", "end")

_HELP = """\
1 2 3 4       cluster, memory, schedule, models; tab and shift-tab go round
up down       scroll (also j and k), page up and page down, home and end
space         stop the picture, or go on; of a log: play, or stand still
n p           next and previous worker, in memory
+ -           zoom the schedule in and out
left right    move the schedule's time; 0 follows now again
< >           of a log: 1 s back and on; { and } 10 s
s r           sort the models by the next column; reverse
e             the models that were evicted most
/             search models by a part of their name; enter keeps it, escape drops it
?             these lines
q             quit"""


class Screen:
    """The state of the screen."""

    def __init__(self, shown: ViewName = "cluster", *, recorded: bool = False) -> None:
        self.shown: ViewName = shown
        self.paused = False
        self.quit = False
        self.known = True
        """True if a picture was ever whole; before, nothing is shown that would look like one."""
        self.seek_ns = 0
        """Time by which a log is to be moved; the reader sets it to 0."""
        self.play = False
        """True if a log is to begin to play, or to stand still if it plays; the reader resets it."""
        self.search = ""
        self.sort = "demand"
        self.descending = True
        self.top = 0
        """The first line of the view, or the first model of the table, that is on the screen."""
        self._recorded = recorded
        self._typing = False
        self._help = False
        self._worker = 0
        self._span = SPANS_MS.index(500)
        self._at_ns: int | None = None
        """The instant that the schedule is about; None for now."""
        self._last_ns = 0
        self._page = 1
        self._kept: list[Text] | None = None
        """Lines that are shown while the picture stands still."""
        self._draw: dict[ViewName, Callable[[View, int, int], list[Text]]] = {
            "cluster": self._cluster,
            "memory": self._memory,
            "schedule": self._schedule,
            "models": self._models,
        }
        self._keys = self._bindings()

    def key(self, name: str) -> None:
        """Take a key; one without a meaning here changes nothing."""
        if self._typing:
            self._typed(name)
        elif name in ("1", "2", "3", "4"):
            self._show(VIEWS[int(name) - 1])
        elif name in self._keys:
            self._keys[name]()
        if name != "space" and (self.shown == "models" or name not in _SCROLLING):
            # A changed query is asked again, also where the picture stands still.
            self._kept = None

    def lines(self, view: View, width: int, height: int | None) -> list[Text]:
        """Return the view's lines, those that fit if ``height`` is given."""
        if self._help:
            return [Text(cut(line, width)) for line in _HELP.splitlines()][:height]
        if not self.paused or self._kept is None:
            self._last_ns = view.now_ns
            self._kept = self._draw[self.shown](view, width, MODELS_ASKED + 2 if height is None else height)
        lines = self._kept
        if height is None:
            return lines
        self._page = max(1, height - 2)
        if self.shown == "models":
            return lines[:height]
        self.top = max(0, min(self.top, len(lines) - height))
        return lines[self.top : self.top + height]

    def frame(self, view: View, head: Head, detail: str, clock: str, width: int, height: int) -> list[Text]:
        """Return the whole screen: head, tabs, view, keys."""
        state = "paused" if self.paused else head.state.replace("_", " ")
        style = "bold reverse" if head.state in ("live", "recorded") else "bold reverse yellow"
        told = f" mainspring top   {state}{f': {detail}' if detail else ''}"
        right = f"{head.policy}  {clock} "
        first = cut(told, max(0, width - len(right))) + right
        tabs = Text()
        for place, name in enumerate(VIEWS, 1):
            tabs.append(f" {place} {name} ", style="reverse" if name == self.shown else "")
        if self.known:
            body = self.lines(view, width, max(1, height - FRAME_LINES))
        else:
            why = detail or "how things stand has not come yet"
            body = [
                Text(""),
                Text(cut(f" Nothing is known of the cluster yet: {why}", width), style="yellow"),
            ]
            body = body[: height - FRAME_LINES]
        body += [Text("")] * (height - FRAME_LINES - len(body))
        lines = [Text(first, style=style), tabs, *body, Text(cut(self._hints(), width), style="dim")]
        return [_cropped(line, width) for line in lines]

    def _hints(self) -> str:
        if self._typing:
            return f"search: {self.search}_   enter keeps it, escape drops it"
        of_view = {
            "cluster": "",
            "memory": "n/p worker  ",
            "schedule": "+/- zoom  left/right time  0 now  ",
            "models": f"/ search  s sort ({self.sort})  r reverse  ",
        }[self.shown]
        of_log = "space play  </> 1 s  " if self._recorded else "space pause  "
        return f" 1-4 view  {of_view}{of_log}up/down scroll  ? keys  q quit"

    # --- views ---

    def _cluster(self, view: View, width: int, _height: int) -> list[Text]:
        return cluster_lines(cluster(view), width, view.now_ns)

    def _memory(self, view: View, width: int, _height: int) -> list[Text]:
        names = sorted([each.name for each in cluster(view, recent=0).workers], key=in_order)
        if not names:
            return [Text(cut("no worker is connected", width))]
        self._worker %= len(names)
        try:
            found = memory(view, names[self._worker])
        except Unknown as error:
            return [Text(cut(str(error), width))]
        return memory_lines(found, width, view.now_ns, nth=self._worker + 1, of=len(names))

    def _schedule(self, view: View, width: int, _height: int) -> list[Text]:
        span_ns = SPANS_MS[self._span] * 1_000_000
        at_ns = view.now_ns if self._at_ns is None else self._at_ns
        to_ns = at_ns + round(span_ns * AHEAD)
        return schedule_lines(schedule(view, to_ns - span_ns, to_ns), width, view.now_ns)

    def _models(self, view: View, width: int, height: int) -> list[Text]:
        room = max(1, height - 2)
        found = self._asked(view, room)
        if self.top > max(0, found.total - room):
            self.top = max(0, found.total - room)
            found = self._asked(view, room)
        order = f"by {self.sort.replace('_', ' ')}{', most first' if self.descending else ''}"
        searched = f"named like {self.search!r}, " if self.search else ""
        return models_lines(found, width, view.now_ns, searched + order)

    def _asked(self, view: View, limit: int) -> Models:
        return models(
            view,
            search=self.search,
            sort=self.sort,
            descending=self.descending,
            offset=self.top,
            limit=min(limit, MODELS_ASKED),
        )

    # --- keys ---

    def _bindings(self) -> dict[str, Callable[[], None]]:
        """Return what each key does, beside the numbers of the views."""
        return {
            "q": self._quit,
            "hung up": self._quit,
            "space": self._pause,
            "?": self._toggle_help,
            "escape": self._escape,
            "/": self._type,
            "tab": lambda: self._turn(1),
            "back tab": lambda: self._turn(-1),
            "up": lambda: self._scroll(-1),
            "k": lambda: self._scroll(-1),
            "down": lambda: self._scroll(1),
            "j": lambda: self._scroll(1),
            "page up": lambda: self._scroll(-self._page),
            "page down": lambda: self._scroll(self._page),
            "home": lambda: self._scroll(-(1 << 40)),
            "end": lambda: self._scroll(1 << 40),
            "n": lambda: self._next_worker(1),
            "p": lambda: self._next_worker(-1),
            "+": lambda: self._zoom(-1),
            "=": lambda: self._zoom(-1),
            "-": lambda: self._zoom(1),
            "left": lambda: self._move(-1),
            "right": lambda: self._move(1),
            "0": self._follow,
            "<": lambda: self._seek(-1),
            ">": lambda: self._seek(1),
            "{": lambda: self._seek(-10),
            "}": lambda: self._seek(10),
            "s": self._next_sort,
            "r": self._reverse,
            "e": self._by_evictions,
        }

    def _show(self, name: ViewName) -> None:
        self.shown, self.top, self._help = name, 0, False

    def _turn(self, by: int) -> None:
        self._show(VIEWS[(VIEWS.index(self.shown) + by) % len(VIEWS)])

    def _quit(self) -> None:
        self.quit = True

    def _pause(self) -> None:
        if self._recorded:
            self.play = True
        else:
            self.paused = not self.paused

    def _toggle_help(self) -> None:
        self._help = not self._help

    def _escape(self) -> None:
        self._help, self.search, self.top = False, "", 0

    def _scroll(self, by: int) -> None:
        self.top = max(0, self.top + by)

    def _next_worker(self, by: int) -> None:
        self._worker += by
        self.top = 0

    def _zoom(self, by: int) -> None:
        self._span = max(0, min(len(SPANS_MS) - 1, self._span + by))

    def _move(self, by: int) -> None:
        at_ns = self._last_ns if self._at_ns is None else self._at_ns
        self._at_ns = at_ns + by * SPANS_MS[self._span] * 1_000_000 // 4

    def _follow(self) -> None:
        self._at_ns = None

    def _seek(self, seconds: int) -> None:
        self.seek_ns += seconds * 1_000_000_000 if self._recorded else 0

    def _next_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.descending, self.top = self.sort != "name", 0

    def _by_evictions(self) -> None:
        self._show("models")
        self.sort, self.descending = "evictions", True

    def _reverse(self) -> None:
        self.descending, self.top = not self.descending, 0

    def _type(self) -> None:
        self._show("models")
        self._typing = True

    def _typed(self, name: str) -> None:
        """Take a key of the name that is searched for."""
        if name in ("enter", "escape", "hung up"):
            self._typing = False
            self.search = "" if name == "escape" else self.search
            self.quit = name == "hung up"
        elif name == "backspace":
            self.search = self.search[:-1]
        elif name == "space" or len(name) == 1:
            self.search += " " if name == "space" else name
        self.top = 0


def _cropped(line: Text, width: int) -> Text:
    """Return a line that is not wider: some parts have a least width, below which no terminal is of use."""
    if line.cell_len <= width:
        return line
    shorter = line.copy()
    shorter.truncate(width, overflow="crop")
    return shorter
