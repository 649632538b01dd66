"""The weights of a bundle's models, drawn into its store on the machine that checks them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.bundle.contents import BundleError, draw_image, read_draws
from mainspring.experiments.gpu_check.settings import LARGE, LENGTHS, Settings, put_variants
from mainspring.experiments.gpu_check.verdicts import Verdict, failed, told

MOST_THREADS = 4
"""Each holds the weights of one model."""


def check_drawing(settings: Settings) -> Iterator[Verdict]:
    """Draw the weights of all models that are checked, and verify every file's hash."""
    began_s = time.monotonic()
    store = Store(settings.store(settings.engine))
    names = (settings.main, LARGE, LENGTHS, *settings.architectures, *settings.steady, *settings.rounded)
    # In TF32 the main model has its own weights, which are drawn once.
    files = {store.manifest(name).weights_hash: name for name in reversed(names) if name in store.names()}
    wanted = [*files.values()]
    folder = Path(settings.bundle)
    failures = 0

    def draw(name: str) -> Verdict | None:
        try:
            put_drawn(store, store.manifest(name), folder)
            store.verify(name)
        except Exception as error:
            return failed(f"drawing the weights of {name}", str(error) or repr(error))
        return None

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        for verdict in threads.map(draw, wanted):
            if verdict is not None:
                failures += 1
                yield verdict
    if settings.main in wanted and not failures:
        put_variants(store, store, store.manifest(settings.main), [settings.second], 1)
    took = f"{len(wanted) - failures} models in {time.monotonic() - began_s:.1f} s"
    note = f"kernels for {settings.arch}"
    yield told("weights drawn from the bundle's seeds", took, note)


def put_drawn(store: Store, manifest: Manifest, folder: Path) -> None:
    """Store a model's weights as drawn; raise `BundleError` if they are others than the manifest's."""
    draws, raw = read_draws(folder, manifest.name)
    image = draw_image(manifest.tensors, draws, raw, manifest.weights_bytes)
    found, _ = store.put_weights([image.data])
    if found != manifest.weights_hash:
        raise BundleError(
            f"the weights of {manifest.name} are drawn otherwise here than where the bundle was made "
            f"(SHA-256 {found[:12]} instead of {manifest.weights_hash[:12]})"
        )


def redraw(store: Store, manifest: Manifest, folder: Path) -> Manifest:
    """Store weights as they are drawn, and the manifest with their hash; return that."""
    draws, raw = read_draws(folder, manifest.name)
    image = draw_image(manifest.tensors, draws, raw, manifest.weights_bytes)
    drawn = msgspec.structs.replace(manifest, weights_hash=store.put_weights([image.data])[0])
    store.put_manifest(drawn)
    return drawn
