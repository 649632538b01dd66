"""Models that differ from a compiled one in their weights alone: one of its tensors, scaled.

So each has outputs of its own, and none has to be compiled. Variants may stand in a store of their own, which
then is a folder to throw away; the executable is linked.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import ModelSpec

HASHING_THREADS = 8


def beside(source: Store, root: Path, linked: Sequence[str]) -> Store:
    """Return a store in ``root`` that has some folders of another: ``executables``, ``weights`` or both."""
    store = Store(root)
    store.check_writable()
    for kind in linked:
        link = store.root / kind
        if not link.exists():
            link.symlink_to((source.root / kind).resolve(), target_is_directory=True)
    return store


def put_variants(
    store: Store, source: Store, manifest: Manifest, names: Sequence[str], different: int
) -> list[ModelSpec]:
    """Store variants of a model of ``source`` under these names; they have ``different`` weights in turn."""
    image = np.fromfile(source.weights_path(manifest), np.uint8)
    scaled = max(manifest.tensors, key=lambda tensor: tensor.size_bytes * (tensor.dtype == "float32"))

    def put(index: int) -> str:
        changed = image.copy()
        numbers = changed[scaled.offset : scaled.offset + scaled.size_bytes].view(np.float32)
        numbers *= np.float32(1 + (index + 1) / (2 * different))
        return store.put_weights([changed.data])[0]

    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        hashes = list(threads.map(put, range(different)))
    specs = []
    for index, name in enumerate(names):
        made = msgspec.structs.replace(manifest, name=name, weights_hash=hashes[index % different])
        store.put_manifest(made)
        specs.append(made.spec())
    return specs
