"""Garbage collection: deletes artifacts whose files left the repository or changed."""

from __future__ import annotations

import asyncio
import logging

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.repository.recipe import is_artifact_name, model_and_version
from mainspring.repository.reconciler import Reconciler

_LOGGER = logging.getLogger("mainspring.repository")


async def sweep(root: str, reconciler: Reconciler, *, always: bool) -> None:
    """Delete the artifacts that no model of the repository uses; not to be called during a compilation.

    ``always``: also what an interrupted compilation left, even if there is nothing else.
    """
    store = Store(root)
    try:
        names = await asyncio.to_thread(store.names)
        unused = [
            name
            for name in names
            if is_artifact_name(name) and not reconciler.is_kept(*model_and_version(name), name)
        ]
        if unused or always:
            freed = await asyncio.to_thread(_delete, store, unused)
            _LOGGER.info("deleted %d artifacts that no model uses, %d bytes", len(unused), freed)
    except StoreError as error:
        _LOGGER.warning("could not delete artifacts that no model uses: %s", error)


def _delete(store: Store, names: list[str]) -> int:
    for name in names:
        store.remove(name)
    return store.collect()
