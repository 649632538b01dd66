"""An ensemble of a ``config.pbtxt`` as a graph of models: Triton's ``ensemble_scheduling``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mainspring.messages.choices import did_you_mean
from mainspring.messages.graphs import GraphSpec, StepSpec, graph_fault
from mainspring.messages.queries import MOST_STEPS
from mainspring.repository.reading import ConfigFault, Fields

_NEWEST = -1
"""A step's ``model_version`` for the highest that is served."""


def read_ensemble(
    fields: Fields, name: str, inputs: Sequence[str], outputs: Sequence[str], slo_ns: int | None
) -> GraphSpec | None:
    """Return the graph that a configuration describes, None if it describes a model; raise `ConfigFault`.

    ``inputs`` and ``outputs`` are the names of the ensemble's own tensors.
    """
    scheduling = fields.message("ensemble_scheduling")
    if scheduling is None:
        if fields.text("platform", "") == "ensemble":
            raise ConfigFault(
                f"{fields.place('platform')}: an ensemble needs ensemble_scheduling with its steps"
            )
        return None
    if fields.text("platform", "") != "ensemble":
        where = fields.place("ensemble_scheduling")
        raise ConfigFault(f'{where}: ensemble_scheduling is for platform: "ensemble"')
    steps = scheduling.messages("step")
    if not 1 <= len(steps) <= MOST_STEPS:
        raise ConfigFault(f"{scheduling.where}: an ensemble has 1 to {MOST_STEPS} steps, not {len(steps)}")
    names = _names([each.text("model_name", "") for each in steps])
    sources = {each: each for each in inputs}
    for step, own in zip(steps, names, strict=True):
        for output, tensor in _map(step, "output_map").items():
            if tensor in sources:
                raise ConfigFault(f"{step.where}: tensor {tensor!r} has another source already")
            sources[tensor] = f"{own}.{output}"
    graph = GraphSpec(
        name=name,
        inputs=tuple(inputs),
        steps=tuple([_step(*each, sources) for each in zip(steps, names, strict=True)]),
        outputs={each: _source(scheduling, each, sources) for each in outputs},
        slo_ms=None if slo_ns is None else slo_ns / 1e6,
    )
    if fault := graph_fault(graph):
        raise ConfigFault(f"{scheduling.where}: {fault}")
    return graph


def _step(step: Fields, name: str, sources: Mapping[str, str]) -> StepSpec:
    model = step.text("model_name", "")
    if not model:
        raise ConfigFault(f"{step.where}: a step needs model_name")
    version = step.count("model_version", _NEWEST, _NEWEST, (1 << 63) - 1)
    taken = _map(step, "input_map")
    return StepSpec(
        name=name,
        model=model if version == _NEWEST else f"{model}:{version}",
        inputs={key: _source(step, tensor, sources) for key, tensor in taken.items()},
    )


def _source(step: Fields, tensor: str, sources: Mapping[str, str]) -> str:
    if tensor not in sources:
        near = did_you_mean(tensor, sources)
        raise ConfigFault(f"{step.where}: no step and no input gives tensor {tensor!r}{near}")
    return sources[tensor]


def _map(step: Fields, field: str) -> dict[str, str]:
    """Return a map of the model's tensors to the ensemble's."""
    found: dict[str, str] = {}
    for entry in step.messages(field):
        key = entry.text("key", "")
        if key in found:
            raise ConfigFault(f"{entry.where}: {field} has {key!r} twice")
        found[key] = entry.text("value", "")
    return found


def _names(models: Sequence[str]) -> list[str]:
    """Return a step's name for each model: the model's, as an identifier that no other step has."""
    found: list[str] = []
    for model in models:
        stem = re.sub(r"\W", "_", model)
        stem = stem if stem.isidentifier() else f"step_{stem}"
        name, number = stem, 2
        while name in found:
            name, number = f"{stem}_{number}", number + 1
        found.append(name)
    return found
