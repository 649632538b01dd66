"""Query ``model``: one model in full."""

from __future__ import annotations

import difflib

from mainspring.console.payloads import ModelPage
from mainspring.console.queries.asking import Unknown
from mainspring.console.queries.lines import request_line
from mainspring.console.queries.models import commonest_kind, model_line
from mainspring.console.view.models import BROKEN, FAILED, ModelState, Placement
from mainspring.console.view.view import View
from mainspring.messages.model import TensorSpec


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
    )


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
