"""Which workload a trace file holds, read from its header, so that users need not name it."""

from __future__ import annotations

from pathlib import Path

from mainspring.traces import azure2019, azure2021
from mainspring.traces.arrival import WorkloadError
from mainspring.traces.kind import FROM_FILE, Kind
from mainspring.traces.tracefile import TraceError, read_header


def chosen_kind(kind: Kind | None, trace: Path | None) -> Kind:
    """Return ``kind``; where none was chosen, what ``trace`` holds, or else the synthetic mix.

    Raises as `kind_of_file`.
    """
    if kind is not None:
        return kind
    return Kind.SYNTHETIC if trace is None else kind_of_file(trace)


def check_trace(kind: Kind, trace: Path | None) -> None:
    """Raise `WorkloadError` unless there is a file for a workload that reads one, and none for others."""
    if kind in FROM_FILE and trace is None:
        raise WorkloadError(f"the workload {kind.value} is read from a file; name it with --trace FILE")
    if kind not in FROM_FILE and trace is not None:
        raise WorkloadError(
            f"the workload {kind.value} is generated and would not read {trace.name}; leave one of them out"
        )


def kind_of_file(trace: Path) -> Kind:
    """Return the workload whose schema the file's header has; raise `TraceError` if it has neither's."""
    header = read_header(trace)
    if header[:1] == [azure2019.COLUMNS[0].lower()]:
        return Kind.AZURE2019
    if header[:1] == [azure2021.COLUMNS[0]]:
        return Kind.AZURE2021
    raise TraceError(
        f"{trace}:1: no trace of Azure Functions: the header must begin with {','.join(azure2019.COLUMNS)}"
        f" (2019) or be {','.join(azure2021.COLUMNS)} (2021), not {','.join(header[:4]) or 'nothing'}"
    )
