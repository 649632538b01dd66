"""The repository's index: every model and version, its state and, where there is one, the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.messages.repository import IndexEntry, ModelState
from mainspring.repository.builds import Record, Stage
from mainspring.repository.reconciler import Reconciler

SETTLING = "its files are being changed"


def index_of(reconciler: Reconciler) -> tuple[IndexEntry, ...]:
    """Return the entries by name and version."""
    entries: list[IndexEntry] = []
    for name in sorted(reconciler.records):
        entries += _entries(reconciler, reconciler.records[name])
    known = {(entry.name, entry.version) for entry in entries}
    leaving = {(spec.served_as, str(spec.version)) for spec in reconciler.cluster.retiring.values()}
    entries += [
        IndexEntry(name, version, ModelState.UNLOADING, "requests for it are in flight")
        for name, version in sorted(leaving - known)
    ]
    return tuple(sorted(entries, key=lambda entry: (entry.name, int(entry.version or 0))))


def _entries(reconciler: Reconciler, record: Record) -> Iterator[IndexEntry]:
    served = reconciler.cluster.versions_of(record.name)
    if record.gone and not served:
        return
    versions = {*served, *(record.found.digests if record.loaded and not record.found.fault else ())}
    for number in sorted(versions):
        yield _entry(record, number, served)
    settling = [each for each in record.found.settling if record.loaded and each not in versions]
    for number in filter(None, settling):
        yield IndexEntry(record.name, str(number), ModelState.LOADING, SETTLING)
    if not versions and not any(settling):
        yield IndexEntry(record.name, "", *_without_versions(record))


def _without_versions(record: Record) -> tuple[ModelState, str]:
    if record.found.fault:
        return ModelState.UNAVAILABLE, record.found.fault
    if not record.loaded:
        return ModelState.UNAVAILABLE, "unloaded"
    return ModelState.LOADING, SETTLING if record.settling else "it is looked at"


def _entry(record: Record, number: int, served: dict[int, str]) -> IndexEntry:
    state, reason = ModelState.LOADING, ""
    build = None
    if number in record.found.digests and not record.found.fault:
        build = record.build(number)
        reason = record.fault(build) or build.stage.value
        if build.stage is Stage.FAILED or record.fault(build):
            state = ModelState.UNAVAILABLE
    if number in served:
        state = ModelState.READY
        if build is None:
            reason = record.found.fault
        elif build.name == served[number]:
            reason = f"it is served as it was; {SETTLING}" if record.settling else ""
        else:
            reason = f"it is served as it was before its files changed, of which now: {reason}"
    elif build is not None and build.stage is Stage.READY:
        reason = "gateways are about to serve it"
    return IndexEntry(record.name, str(number), state, reason)
