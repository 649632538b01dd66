"""Chrome's Trace Event Format, written one event at a time: Perfetto and chrome://tracing open it.

Instants come as nanoseconds from the trace's start and are written in microseconds, as the format wants them,
with three decimals. Readers turn them back by truncating a floating-point product, which may lose a
nanosecond; so a slice is written a nanosecond short, and never reaches into the next one.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

SHORTEST_NS = 1_000
"""The least length of a slice: a shorter one could be neither seen nor be the end of a flow."""


class TraceFile:
    """Writes a trace; a file whose name ends in ``.gz`` is compressed. Nothing is kept in memory."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Begin the file; ``about`` is shown as the trace's metadata. Raises OSError if it can't be made."""
        self.path = path
        self.events = 0
        self.size_bytes = 0
        """Size of the whole file; known once it is closed."""
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._file = self._open(compressed=path.suffix == ".gz")
        self._flows = 0
        about_json = msgspec.json.encode(about)
        self._file.write(b'{"displayTimeUnit":"ms","otherData":' + about_json + b',"traceEvents":[')

    def process(self, pid: int, name: str, order: int) -> None:
        """Name a process and give it its place from the top."""
        self._put(ph="M", pid=pid, name="process_name", args={"name": name})
        self._put(ph="M", pid=pid, name="process_sort_index", args={"sort_index": order})

    def thread(self, pid: int, tid: int, name: str, order: int) -> None:
        """Name a thread; ``tid`` belongs to it alone, whatever the process.

        That whose ``tid`` is its process's has the process's spans and counters, and no slices.
        """
        self._put(ph="M", pid=pid, tid=tid, name="thread_name", args={"name": name})
        self._put(ph="M", pid=pid, tid=tid, name="thread_sort_index", args={"sort_index": order})

    def slice(
        self, pid: int, tid: int, name: str, category: str, begin_ns: int, end_ns: int, args: dict[str, Any]
    ) -> None:
        """Write what happened on a thread. Slices of one thread must not overlap."""
        length_ns = max(end_ns - begin_ns, SHORTEST_NS) - 1
        self._put(
            ph="X",
            pid=pid,
            tid=tid,
            name=name,
            cat=category,
            ts=begin_ns / 1e3,
            dur=length_ns / 1e3,
            args=args,
        )

    def span(
        self, pid: int, name: str, category: str, id_: int, begin_ns: int, end_ns: int, args: dict[str, Any]
    ) -> None:
        """Write what lasted in a process and may overlap; ``id_`` is unique in its category."""
        id_text = f"{id_:#x}"
        self._put(ph="b", pid=pid, tid=pid, name=name, cat=category, id=id_text, ts=begin_ns / 1e3, args=args)
        self._put(ph="e", pid=pid, tid=pid, name=name, cat=category, id=id_text, ts=end_ns / 1e3)

    def flow(self, name: str, begin: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        """Draw an arrow between two slices; each is (pid, tid, begin of the slice)."""
        self._flows += 1
        inside_ns = SHORTEST_NS // 2
        for phase, (pid, tid, at_ns), more in (("s", begin, {}), ("f", end, {"bp": "e"})):
            ts = (at_ns + inside_ns) / 1e3
            self._put(ph=phase, pid=pid, tid=tid, name=name, cat="flow", id=self._flows, ts=ts, **more)

    def counter(self, pid: int, name: str, unit: str, at_ns: int, value: int) -> None:
        """Write a number that holds from an instant on."""
        self._put(ph="C", pid=pid, tid=pid, name=name, ts=at_ns / 1e3, args={unit: value})

    def close(self) -> None:
        """Finish the file: only now it is there under its name."""
        self._file.write(b"\n]}\n")
        self._file.close()
        self._part.replace(self.path)
        self.size_bytes = self.path.stat().st_size

    def abandon(self) -> None:
        """Leave no file behind."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _open(self, *, compressed: bool) -> BinaryIO:
        if compressed:
            return cast("BinaryIO", gzip.open(self._part, "wb", compresslevel=6))
        return self._part.open("wb")

    def _put(self, **event: Any) -> None:
        self._file.write((b",\n" if self.events else b"\n") + msgspec.json.encode(event))
        self.events += 1
