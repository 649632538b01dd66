"""How much pinned host memory a worker asks for at its start: what the store's models need, if there is."""

from __future__ import annotations

import logging
from pathlib import Path

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.worker.cuda.weights_index import ALIGNMENT_BYTES

LOG = logging.getLogger(__name__)

MOST_OF_AVAILABLE = 0.85
"""Pinned memory is nobody else's any more, and the files that weights are read from want some too."""


def reserve_for(store: Store, available_bytes: int | None = None) -> int:
    """Return the bytes of all different weights in the store, as far as the host has them."""
    sizes: dict[str, int] = {}
    try:
        for manifest in store.manifests():
            aligned = -(-manifest.weights_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            sizes[manifest.weights_hash] = aligned
    except StoreError as error:
        # There may be no model yet; one that can't be read is refused when it is prepared.
        LOG.info("host memory for weights grows as models come: %s", error)
    wanted = sum(sizes.values())
    most = may_be_pinned(available_bytes)
    if wanted > most:
        LOG.warning(
            "the store's weights take %d MiB, and of the host's memory %d MiB can be pinned: not all models "
            "can be prepared",
            wanted >> 20,
            most >> 20,
        )
    return min(wanted, most)


def may_be_pinned(available_bytes: int | None = None) -> int:
    """Return how much of the host's memory may still be pinned, with what is available or that many bytes."""
    there = _available() if available_bytes is None else available_bytes
    return int(there * MOST_OF_AVAILABLE) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _available() -> int:
    """Return what Linux says can be had without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
