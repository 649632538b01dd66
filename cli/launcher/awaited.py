"""Models of a store that can't be read when a controller starts: they are retried until they can be."""

from __future__ import annotations

import logging
import threading

from mainspring.cli.launcher.models import ModelSource
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.controller.recovery import Awaited
from mainspring.messages.model import ModelSpec

_LOGGER = logging.getLogger(__name__)
INTERVAL_S = 1.0
"""Time between two attempts to read it."""
_ADOPTING = "%s; serving what workers hold, until it can be read"


def read(source: ModelSource, stop: threading.Event, *, adopt: bool) -> tuple[list[ModelSpec], Awaited]:
    """Return a source's models, and what could not be read; a thread retries that until ``stop``.

    ``adopt``: if nothing can be read, serve what workers hold instead of raising `StoreError`.
    """
    try:
        specs, left_out = source.survey()
        awaited = Awaited(left_out)
    except StoreError as error:
        if not adopt:
            raise
        _LOGGER.warning(_ADOPTING, error)
        specs, awaited = [], Awaited(adopt=True)
    for why in awaited.left_out.values():
        _LOGGER.warning("left out of what is served: %s", why)
    if awaited.left_out or awaited.adopt:
        arguments = (source, dict(awaited.left_out), awaited, stop)
        threading.Thread(target=_look, args=arguments, name="store", daemon=True).start()
    return specs, awaited


def _look(source: ModelSource, left_out: dict[str, str], awaited: Awaited, stop: threading.Event) -> None:
    """Put what becomes readable where the controller finds it."""
    store, whole = Store(source.store or ""), awaited.adopt
    seen = {name: store.manifest_fingerprint(name) for name in left_out}
    while (left_out or whole) and not stop.wait(INTERVAL_S):
        now = {name: store.manifest_fingerprint(name) for name in left_out}
        if now == seen and not whole:
            continue
        seen = now
        try:
            specs, left_out = source.survey()
        except StoreError:
            continue
        for spec in specs:
            if whole or spec.name in seen:
                awaited.found.put(spec)
        whole = False
        seen = {name: store.manifest_fingerprint(name) for name in left_out}
