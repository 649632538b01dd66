"""Prometheus' text format 0.0.4: families of samples as lines. Pure.

Written here because a scrape of fifty models has nine thousand lines, in the thread that keeps deadlines:
prometheus-client takes ten microseconds for a line, this half a one. Its parser reads all of it in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escape(value: str) -> str:
    """Return a label's value as it stands between quotation marks."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels(**values: str) -> str:
    """Return labels as they stand between braces; those without a value are left out, which is the same."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in values.items() if value)


def head(name: str, kind: str, meaning: str) -> str:
    """Return the first lines of a family: ``kind`` is counter, gauge, histogram or untyped."""
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def sample(name: str, own: str, value: float) -> str:
    """Return one line; ``own`` are its labels."""
    return f"{name}{{{own}}} {value!r}\n" if own else f"{name} {value!r}\n"


def family(name: str, kind: str, meaning: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Yield a family of counters or gauges, each given as its labels and value; nothing without samples."""
    begun = False
    for own, value in samples:
        if not begun:
            yield head(name, kind, meaning)
            begun = True
        yield sample(name, own, value)


class Buckets:
    """The bounds of a histogram, made ready for many label sets."""

    def __init__(self, bounds: Iterable[int], unit: float) -> None:
        """``unit``: how many of the bounds' units make one of the metric's, 1e9 for seconds."""
        bounds = tuple(bounds)
        self._unit = unit
        self._ends = [f'le="{bound / unit!r}"}} ' for bound in bounds] + ['le="+Inf"} ']
        self._sums = bounds[0] >= 0

    def lines(self, name: str, own: str, counts: Iterable[int], total: int) -> str:
        """Return a histogram's lines for one label set; ``total`` is the sum of its observations.

        One with negative bounds has no sum: that of such observations can fall, which a counter may not.
        """
        begin = f"{name}_bucket{{{own}," if own else f"{name}_bucket{{"
        running = list(accumulate(counts))
        parts = [f"{begin}{end}{count}\n" for end, count in zip(self._ends, running, strict=True)]
        if self._sums:
            parts.append(sample(f"{name}_sum", own, total / self._unit))
        parts.append(sample(f"{name}_count", own, running[-1]))
        return "".join(parts)
