"""A model's configuration in the words of Triton's ``ModelConfig``, each field that has a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.gateway.oip.datatypes import BYTES, datatype_of
from mainspring.gateway.oip.metadata import PLATFORM, shown
from mainspring.messages.model import (
    ModelSpec,
    Profile,
    TensorSpec,
)
from mainspring.messages.sequencing import Sequencing

UNVERIFIED = "mainspring_unverified"
"""Parameter of a model's configuration: ``true`` if it was compared with nothing."""
UNSHARED = "mainspring_unshared"
"""Parameter of a model's configuration: why each row of it runs alone."""
ROWS = "mainspring_rows"
"""Parameter of a model's configuration whose rows are not in front: JSON, the most rows and, by tensor, which
axis of it they are."""
SIZES = "mainspring_sizes."
"""Parameters of a model's configuration: which sizes an open dimension may have, by its name."""
TIMES = "mainspring_infer_ms."
"""Begins parameters that say how long executions take on a kind of device: JSON, by bucket and batch size."""
KINDS: Mapping[str, str] = {
    "start": "CONTROL_SEQUENCE_START",
    "end": "CONTROL_SEQUENCE_END",
    "ready": "CONTROL_SEQUENCE_READY",
    "id": "CONTROL_SEQUENCE_CORRID",
}
"""Triton's names of what a control says."""
_MODEL: Mapping[str, Any] = {
    "platform": PLATFORM,
    "backend": PLATFORM,
    "runtime": "",
    "version_policy": {"latest": {"num_versions": 1}},
    "optimization": {"priority": "PRIORITY_DEFAULT"},
    "default_model_filename": "",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "response_cache": {"enable": False},
    "model_transaction_policy": {"decoupled": False},
}
"""Values for a model whose configuration does not say otherwise."""
_TENSOR = {"is_shape_tensor": False, "is_non_linear_format_io": False}
_INPUT: Mapping[str, Any] = {
    "format": "FORMAT_NONE", "allow_ragged_batch": False, "optional": False, **_TENSOR
}  # fmt: skip
_OUTPUT: Mapping[str, Any] = {"label_filename": "", **_TENSOR}
_BATCHING: Mapping[str, Any] = {
    "max_queue_delay_microseconds": 0,
    "preserve_ordering": False,
    "priority_levels": 0,
    "default_priority_level": 0,
}
_GROUP: Mapping[str, Any] = {
    "count": 1, "kind": "KIND_MODEL", "gpus": [], "passive": False, "host_policy": ""
}  # fmt: skip
"""One execution at a time, on devices that the scheduler chooses."""


def model_config(name: str, spec: ModelSpec, config: str = "") -> dict[str, Any]:
    """Return a model's configuration.

    ``config`` is what its repository says, as JSON; what it leaves open is filled in from the model itself.
    If requests may not share executions of it, the parameter `UNSHARED` says which node is the reason; those
    that begin with `SIZES` say which sizes its open dimensions may have, with `TIMES` how long these take.
    """
    said = msgspec.json.decode(config, type=dict[str, Any]) if config else {}
    inputs, outputs = said.pop("input", []), said.pop("output", [])
    # A batch size stands for a first axis that shapes leave out.
    batched = not spec.whole and spec.rows_in_front
    # Where a configuration says 0, rows are one of the dimensions.
    with_rows = not spec.whole and (said.get("max_batch_size") == 0 or not batched)
    found: dict[str, Any] = {
        **_MODEL,
        "max_batch_size": spec.max_rows if batched else 0,
        "instance_group": [{}],
        **said,
        "name": name,
        "input": [_tensor_config(tensor, inputs, _INPUT, with_rows=with_rows) for tensor in spec.inputs],
        "output": [_tensor_config(tensor, outputs, _OUTPUT, with_rows=with_rows) for tensor in spec.outputs],
    }
    groups = enumerate(found["instance_group"] or [{}])
    found["instance_group"] = [{"name": f"{name}_{number}", **_GROUP, **group} for number, group in groups]
    if "dynamic_batching" in said or batched:
        sizes = {"preferred_batch_size": list(spec.batch_sizes)} if batched else {}
        found["dynamic_batching"] = {**_BATCHING, **sizes, **said.get("dynamic_batching", {})}
    if spec.sequencing is not None:
        found["sequence_batching"] = {
            **_sequence_batching(spec.sequencing),
            **found.get("sequence_batching", {}),
        }
        found.pop("dynamic_batching", None)
    if spec.symbols:
        taken = {f"{SIZES}{symbol.name}": {"string_value": symbol.sizes} for symbol in spec.symbols}
        found["parameters"] = {**found["parameters"], **taken}
        found["parameters"] |= {
            f"{TIMES}{kind}": {"string_value": _curve(profile)}
            for kind, profile in spec.profiles.items()
            if profile.shaped
        }
    found["parameters"] = {**found["parameters"], **_unusual(spec)}
    # More may be configured than fit.
    found["max_batch_size"] = min(found["max_batch_size"], spec.max_rows)
    if spec.unshared:
        found["max_batch_size"] = spec.max_rows
        found.get("dynamic_batching", {}).pop("preferred_batch_size", None)
        found["parameters"] = {**found["parameters"], UNSHARED: {"string_value": spec.unshared}}
    return found


def _unusual(spec: ModelSpec) -> dict[str, Any]:
    """Return the parameters of a model with rows behind another axis, or compared with nothing."""
    found = {} if spec.whole or spec.rows_in_front else {ROWS: {"string_value": _rows(spec)}}
    return found if spec.verified else {**found, UNVERIFIED: {"string_value": "true"}}


def _rows(spec: ModelSpec) -> str:
    """Return where a model's rows are, and how many a request may have, as JSON."""
    axes = {tensor.name: tensor.rows_axis for tensor in (*spec.inputs, *spec.outputs)}
    return msgspec.json.encode({"most": spec.max_rows, "axes": axes}).decode()


def _curve(profile: Profile) -> str:
    """Return a profile's durations in milliseconds as JSON, by bucket of sizes and then by batch size."""
    curve = {
        bucket: {str(size): round(duration_ns / 1e6, 3) for size, duration_ns in each.items()}
        for bucket, each in profile.shaped.items()
    }
    return msgspec.json.encode(curve).decode()


def _sequence_batching(sequencing: Sequencing) -> dict[str, Any]:
    """Return what sequences are, of a model whose repository does not say it in these words."""
    found: dict[str, Any] = {
        "state": [{"input_name": each.input, "output_name": each.output} for each in sequencing.states],
        "control_input": [
            {"name": each.input, "control": [{"kind": KINDS[each.kind]}]} for each in sequencing.controls
        ],
        "oldest": {},
    }
    if sequencing.idle_ns is not None:
        found["max_sequence_idle_microseconds"] = sequencing.idle_ns // 1000
    return found


def _tensor_config(
    tensor: TensorSpec, said: list[dict[str, Any]], defaults: Mapping[str, Any], *, with_rows: bool
) -> dict[str, Any]:
    """Return a tensor's configuration, with what its repository ``said``; its shape may have the rows."""
    datatype = datatype_of(tensor.dtype)
    kind = "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"
    beside = next((each for each in said if each.get("name") == tensor.name), {})
    dims = list(shown(tensor).with_rows(-1) if with_rows else shown(tensor).shape)
    if tensor.default is not None:
        defaults = {**defaults, "optional": True}
    found = {**defaults, **beside, "name": tensor.name, "data_type": kind, "dims": dims}
    if found["dims"]:
        return found
    # Triton has no tensors without axes here: one value for each row is an axis of one, taken away again.
    return {**found, "dims": [1], "reshape": {"shape": []}}
