"""Which models the demonstration serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.copies import compile_zoo
from mainspring.messages.model import ModelSpec

ARCHITECTURES = ("bert-mini", "bert-tiny", "mobilenet", "resnet56", "shufflenet", "squeezenet")
"""Small enough that one core runs a request in a few milliseconds, and of several kinds."""

COPIES = 4
DEVICE_KIND = "cpu"


def fill_store(folder: Path, say: Callable[[str], None]) -> list[ModelSpec]:
    """Compile the demonstration's models into a store, as far as it does not hold them; return all of them.

    ``say`` is told of each architecture when its copies are there.
    """
    store = Store(folder)
    specs = []
    for architecture in ARCHITECTURES:
        began = time.monotonic()
        compiled = list(compile_zoo([architecture], store, COPIES))
        done = [one.manifest.spec() for one in compiled]
        kept = sum(one.kept for one in compiled)
        profile = done[0].profiles[DEVICE_KIND]
        single = f"{profile.infer_ns[1] / 1e6:.1f} ms a request, LOAD {profile.load_ns / 1e6:.1f} ms"
        took = "kept" if kept == COPIES else f"{time.monotonic() - began:.1f} s"
        say(f"{COPIES} x {architecture:12} {done[0].pages} pages, {single}  ({took})")
        specs += done
    return sorted(specs, key=lambda spec: spec.name)
