"""Query ``model``: one model in full."""

from __future__ import annotations

import difflib
from collections import Counter

from mainspring.console.payloads import ModelPage
from mainspring.console.queries.asking import Unknown
from mainspring.console.queries.lines import request_line
from mainspring.console.queries.models import commonest_kind, model_line
from mainspring.console.view.models import BROKEN, FAILED, ModelState, Placement
from mainspring.console.view.view import View
from mainspring.messages.model import TensorSpec

ROOM = 10
"""Models that are named which it made room for, and which made room for it."""


def model(view: View, name: str) -> ModelPage:
    """Return one model by the scheduler's name; raise `Unknown` for a model that there is not."""
    known = find_model(view, name)
    spec = known.spec
    return ModelPage(
        line=model_line(view, known, commonest_kind(view)),
        versions_of=name if spec is None else spec.public_name,
        weights_bytes=0 if spec is None else spec.weights_bytes,
        extents=[] if spec is None else [*spec.extents],
        inputs=[] if spec is None else [_told(each, whole=spec.whole) for each in spec.inputs],
        outputs=[] if spec is None else [_told(each, whole=spec.whole) for each in spec.outputs],
        profiles={}
        if spec is None
        else {
            kind: {size: ns / 1e6 for size, ns in sorted(profile.infer_ns.items())}
            for kind, profile in sorted(spec.profiles.items())
        },
        load_ms={}
        if spec is None
        else {kind: profile.load_ns / 1e6 for kind, profile in sorted(spec.profiles.items())},
        placements={worker: _where(each) for worker, each in known.placements.items()},
        recent=[request_line(each) for each in reversed(known.recent or ())],
        evicted_for=_room(view, name, of_it=True),
        evicted=_room(view, name, of_it=False),
        load_now_ms=_load_ms(view, known),
    )


def _room(view: View, name: str, *, of_it: bool) -> dict[str, int]:
    """Return how often a model made room for which others, or (not ``of_it``) which others for it."""
    counts: Counter[str] = Counter()
    for history in view.fleet.histories.values():
        for each in history.evictions:
            giver, taker = each.model, each.for_model
            if (giver if of_it else taker) == name and taker:
                counts[taker if of_it else giver] += 1
    return dict(counts.most_common(ROOM))


def _load_ms(view: View, known: ModelState) -> float | None:
    kind = commonest_kind(view)
    if known.spec is None or not kind:
        return None
    return view.fleet.durations.loads(kind, known.spec).time.ns / 1e6


def find_model(view: View, name: str) -> ModelState:
    """Return a model by name; raise `Unknown`, with the nearest name, for a model that there is not."""
    known = view.fleet.models.get(name)
    if known is None:
        nearest = difflib.get_close_matches(name[:200], view.fleet.models, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise Unknown(f"there is no model {name[:200]!r}{hint}")
    return known


def _where(placement: Placement) -> str:
    if placement.state in (FAILED, BROKEN):
        return f"failed: {placement.detail}"
    return placement.state


def _told(tensor: TensorSpec, *, whole: bool) -> str:
    shape = tensor.shape if whole else ("rows", *tensor.shape)
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, shape))}]"
