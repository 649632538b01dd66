"""Of several artifacts of one model, compiled for different engines, the one that its device runs fastest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.profiling.profiling import Measured
from mainspring.compiler import choice
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store, check_name


def check_alike(manifests: Sequence[Manifest], name: str) -> None:
    """Raise `ConfigError` unless these could be artifacts of one model that is to be called ``name``."""
    check_name(name)
    if len(manifests) < 2:
        raise ConfigError(
            f"to find the fastest artifact for {name} takes two of them at least: compile the model for each "
            "engine under a name of its own, and name those"
        )
    first = manifests[0]
    for other in manifests[1:]:
        both = f"{first.name} and {other.name}"
        if (first.inputs, first.outputs) != (other.inputs, other.outputs):
            raise ConfigError(f"{both} differ in their inputs or outputs: they are no artifacts of one model")
        if first.executable == other.executable:
            raise ConfigError(f"{both} share an executable: they take the same time")
        if first.batch_sizes != other.batch_sizes:
            sizes = f"{list(first.batch_sizes)} and {list(other.batch_sizes)}"
            raise ConfigError(f"{both} were compiled for batch sizes {sizes}: compile both for the same")


def per_row_ns(measured: Measured) -> float:
    """Return the geometric mean, over the batch sizes, of the median time for one row."""
    return choice.per_row_ns({size: timing.p50_ns for size, timing in measured.infer.items()})


def keep_fastest(store: Store, rows: Sequence[Measured], name: str) -> Measured:
    """Store the fastest of what was measured as the model ``name``, and return it.

    Files are shared with the model that it is a copy of. Raises `StoreError` if it can't be written.
    """
    fastest = min(rows, key=per_row_ns)
    store.put_manifest(msgspec.structs.replace(store.manifest(fastest.models[0]), name=name))
    return fastest
