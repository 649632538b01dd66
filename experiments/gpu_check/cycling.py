"""Thousands of models in host memory, cycled through a cache that holds a few of them, each run once.

Their weights are the main model's with one tensor scaled, so that each has outputs of its own. As many are
different as the host's memory allows; the others share weights, as copies do that were never trained apart.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from mainspring.cli.profiling.lone_device import LoneDevice, device_for, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.settings import Settings, beside, put_variants
from mainspring.experiments.gpu_check.steady import ENDING_S, time_left_s
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, at_most, not_run, told
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.engines.cuda.driver import open_driver

LARGEST_DIFFERENT = 60
"""Different weights at most: each is written and hashed twice, and there are eight minutes."""
SHARED_MEMORY = Path("/dev/shm")
MADE_BYTES_PER_S = 150e6
DEVICE_SHARE = 0.8
ROOM = 1.2

Array = npt.NDArray[np.generic]


class Cycled(msgspec.Struct, frozen=True):
    """Results of one run through the models."""

    seconds: float
    loads: int
    load_ns: int
    bytes_: int
    wrong: int
    """Runs whose outputs were not those of the same weights before."""
    alike: int
    """Different weights with equal outputs."""


def check_cycling(settings: Settings) -> Iterator[Verdict]:
    """Make the models in a store to throw away, prepare them all, and cycle them."""
    check_began_s = time.monotonic()
    source = Store(settings.store(settings.engine))
    manifest = source.manifest(settings.main)
    different = affordable(settings, manifest.weights_bytes)
    size = different * manifest.weights_bytes
    with folder_for(settings, size) as root:
        if root is None:
            yield not_run(
                "models cycled through the cache",
                f"neither {SHARED_MEMORY} nor {settings.folder} has room for {size * ROOM / 1e9:.1f} GB",
            )
            return
        began_s = time.monotonic()
        store = beside(source, root, ["executables"])
        names = [f"cycled-{index}" for index in range(settings.cycled)]
        specs = put_variants(store, source, manifest, names, different)
        copies = max(2, affordable_pages(settings) // max(1, specs[0].pages))
        written_s, began_s = time.monotonic() - began_s, time.monotonic()
        yield told("cycle: weights written", f"{size / 1e9:.1f} GB in {written_s:.0f} s", str(root.parent))
        with device_for(specs, settings.config(store=root), copies) as device:
            for spec in specs:
                device.prepare(spec)
            prepared_s = time.monotonic() - began_s
            yield told("cycle: models prepared", f"{len(specs):,} in {prepared_s:.0f} s")
            left_s = time_left_s(settings, check_began_s)
            done = cycle(device, specs, different, settings.cycled_s, left_s)
    yield from verdicts(settings, done, different)


@contextlib.contextmanager
def folder_for(settings: Settings, size: int) -> Iterator[Path | None]:
    """Yield an empty folder for ``size`` bytes, in memory if there is room, and remove it afterwards.

    None if there is room nowhere.
    """
    parents = [SHARED_MEMORY, Path(settings.folder)]
    roomy = [each for each in parents if each.is_dir() and shutil.disk_usage(each).free > size * ROOM]
    if not roomy:
        yield None
        return
    parent = roomy[0]
    with tempfile.TemporaryDirectory(prefix="mainspring-gpu-check-", dir=parent) as folder:
        yield Path(folder)


def affordable(settings: Settings, weights_bytes: int) -> int:
    """Return how many different weights there is memory and time for."""
    room = psutil.virtual_memory().available * settings.cycled_share
    seconds = settings.limit_s - settings.cycled_s - ENDING_S
    most_bytes = min(room, seconds * MADE_BYTES_PER_S)
    return max(2, min(settings.cycled, LARGEST_DIFFERENT, int(most_bytes // max(1, weights_bytes))))


def affordable_pages(settings: Settings) -> int:
    """Return how many pages the models are cycled through: fewer where the device has no room for them."""
    number = settings.config().cuda_device
    if number is None:
        return settings.cycled_pages
    driver = open_driver(number)
    driver.attach()
    try:
        room = int(driver.memory().free_bytes * DEVICE_SHARE) // PAGE_BYTES
    finally:
        driver.close()
    return min(settings.cycled_pages, room)


def cycle(
    device: LoneDevice, specs: Sequence[ModelSpec], different: int, seconds: float, left_s: float
) -> Cycled:
    """Load the prepared models in turn over all pages, each replacing who was there, and run each once.

    Until ``seconds`` are over and each was loaded, or ``left_s``.
    """
    pages = specs[0].pages
    # One place less than models, so that a model that comes again has left its place before.
    places = range(0, device.pages - pages + 1, max(1, pages))[: max(1, len(specs) - 1)]
    shift = pages // 2
    resident: dict[int, ModelSpec] = {}
    rows = random_rows(specs[0], 1)
    seen: dict[int, list[Array]] = {}
    loads = load_ns = wrong = 0
    began_s, took_s = time.monotonic(), 0.0
    while not loads or (took_s < left_s and (took_s < seconds or loads < len(specs))):
        spec = specs[loads % len(specs)]
        turn, number = divmod(loads, len(places))
        # Each time through, all places have moved by half a model, as they come to lie in serving.
        place = min(places[number] + shift * (turn % 2), device.pages - pages)
        for start in [start for start in resident if abs(start - place) < pages]:
            device.unload(resident.pop(start))
        load_began_ns = time.monotonic_ns()
        device.load(spec, place)
        load_ns += time.monotonic_ns() - load_began_ns
        resident[place] = spec
        outputs = device.run(spec, 1, rows)
        before = seen.setdefault(loads % len(specs) % different, outputs)
        wrong += not all(np.array_equal(now, then) for now, then in zip(outputs, before, strict=True))
        loads += 1
        took_s = time.monotonic() - began_s
    distinct = {b"".join(array.tobytes() for array in outputs) for outputs in seen.values()}
    return Cycled(took_s, loads, load_ns, loads * specs[0].weights_bytes, wrong, len(seen) - len(distinct))


def verdicts(settings: Settings, done: Cycled, different: int) -> list[Verdict]:
    """Judge the run."""
    rate = done.bytes_ / done.load_ns
    note = f"{different} different weights"
    return [
        at_least(
            "models cycled through the cache", min(done.loads, settings.cycled), settings.cycled, note=note
        ),
        at_least("  for", done.seconds, settings.cycled_s, "s", f"{done.loads:,} LOADs"),
        at_most(
            "  runs with wrong outputs", done.wrong + done.alike, 0, note="against the first of the same"
        ),
        told("  LOADs", f"{done.loads / done.seconds:.1f} a second", f"{rate:.2f} GB/s while loading"),
    ]
