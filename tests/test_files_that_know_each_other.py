"""A file of the product needs no file above it, not even for a type: no further groups import one another."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.test_architecture import MAY_IMPORT, file_of, imported_modules, python_files

KNOW_EACH_OTHER: tuple[set[str], ...] = (
    # One fact: a request has a model, a model placements, a placement a worker, a worker timelines.
    {f"cluster/{name}.py" for name in ("models", "placements", "requests", "timeline", "workers")},
    {f"client/{name}.py" for name in ("asynchronous", "client", "sequences")},
    {f"gateway/core/{name}.py" for name in ("effects", "queries", "requests", "validation")},
    {f"compiler/conversion/{name}.py" for name in ("estimators", "opening")},
    # A town's judge and its workload look at all that is in it, which calls them.
    {f"simulator/town/{name}.py" for name in ("clients", "judge", "town", "workload")},
    {f"planner/{name}.py" for name in ("informed", "ribbon", "search")},
    {f"worker/engines/cuda/{name}.py" for name in ("compiling", "cupy_driver", "driver", "libcuda_driver")},
)
"""Files that import one another, if only for types or as they run: none is to be added. Elsewhere what a file
is about needs no file above it."""


def knowing_each_other() -> list[set[str]]:
    """Return the groups of the product's files that import one another, also by way of others."""
    known = {
        path: {found for module in imported_modules(path) if (found := imported_file(module)) is not None}
        for path in python_files(*MAY_IMPORT, "cli")
    }
    sorter = TopologicalSorter(known)
    groups: list[set[str]] = []
    while True:
        try:
            sorter.prepare()
        except CycleError as error:
            cycle = set(error.args[1])
            touched = [group for group in groups if group & cycle]
            groups = [group for group in groups if not group & cycle] + [cycle.union(*touched)]
            merged = {path: min(group) for group in groups for path in group}
            edges: dict[str, set[str]] = {}
            for path, others in known.items():
                own = merged.get(path, path)
                edges.setdefault(own, set()).update({merged.get(each, each) for each in others} - {own})
            sorter = TopologicalSorter(edges)
        else:
            return groups


def imported_file(module: str) -> str | None:
    """Return the file of a module of ours, or of the module that has a member of this name."""
    return file_of(module) or file_of(module.rpartition(".")[0])


def test_no_further_files_know_each_other() -> None:
    wrong = [sorted(found) for found in knowing_each_other() if found not in KNOW_EACH_OTHER]
    assert not wrong, f"move what both need down, or give the lower one a class of its own to know: {wrong}"
