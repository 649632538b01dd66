"""Results as people read them: a few lines in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from numpy.typing import NDArray

from mainspring.client.durations import format_duration
from mainspring.client.timing import Timing

_MOST_VALUES = 4
_MOST_OUTPUTS = 16


def text_of(outputs: Mapping[str, NDArray[Any]], timing: Timing) -> str:
    """Return a line for each output and one for the timing."""
    lines = [f"  {name!r}: {kind} {values}" for name, kind, values in _rows(outputs)]
    return "\n".join(["InferResult(", *lines, f"  {said(timing)}", ")"])


def html_of(outputs: Mapping[str, NDArray[Any]], timing: Timing) -> str:
    """Return the same as a table."""
    head = "<tr><th>output</th><th>type</th><th>first values</th></tr>"
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in _rows(outputs)
    )
    return f"<table>{head}{rows}</table><p>{escape(said(timing))}</p>"


def said(timing: Timing) -> str:
    """Return a sentence about where the time went."""
    parts = [f"{format_duration(timing.elapsed_ns)} from call to result"]
    if timing.slo_ns is not None:
        left_ns = timing.slo_ns - timing.elapsed_ns
        word = "late" if left_ns < 0 else "left"
        parts.append(f"{format_duration(abs(left_ns))} {word} of {format_duration(timing.slo_ns)}")
    parts.append(f"gateway {format_duration(timing.total_ns)}")
    if timing.cached:
        parts.append("outputs from the cache")
    else:
        parts.append(f"execution {format_duration(timing.execute_ns)} in a batch of {timing.batch_size}")
        parts.append(f"{'cold start' if timing.cold_start else 'warm'} on {timing.worker}")
    return ", ".join(parts)


def _rows(outputs: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, str]]:
    shown = [(name, f"{array.dtype}{list(array.shape)}", _values(array)) for name, array in outputs.items()]
    if len(shown) > _MOST_OUTPUTS:
        rest = len(shown) - _MOST_OUTPUTS
        shown = [*shown[:_MOST_OUTPUTS], ("...", f"{rest} more", "")]
    return shown


def _values(array: NDArray[Any]) -> str:
    first = array.reshape(-1)[:_MOST_VALUES]
    values = [f"{value:.4g}" if array.dtype.kind == "f" else _cut(repr(value.item())) for value in first]
    return f"[{', '.join(values)}{', ...' if array.size > len(first) else ''}]"


def _cut(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:24]}..."
