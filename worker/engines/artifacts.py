"""Whether the store's artifact of a model is the one that the controller means."""

from __future__ import annotations

import math

import msgspec

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.worker.engine import EngineError


def check_artifact(manifest: Manifest, model: ModelSpec) -> None:
    """Raise `EngineError` unless they are of one artifact."""
    compiled = {*model.batch_sizes} <= {*manifest.batch_sizes}
    if not compiled or _artifact(manifest.spec()) != _artifact(model):
        raise EngineError(
            f"the store holds another artifact named {model.name} than the controller asks for: "
            "give the controller and the workers the same store, or compile the model again"
        )


def _artifact(model: ModelSpec) -> ModelSpec:
    """What must be equal for two specifications to be of one artifact: not what clients call it, nor the
    shape in which they see its tensors, nor which of its batch sizes may be used.
    """
    inputs, outputs = (tuple(map(_flat, tensors)) for tensors in (model.inputs, model.outputs))
    return msgspec.structs.replace(
        model,
        profiles={},
        workspace_bytes=0,
        served_as="",
        version=1,
        inputs=inputs,
        outputs=outputs,
        batch_sizes=(),
        unshared="",
    )


def _flat(tensor: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(tensor, shape=(math.prod(tensor.shape),))
