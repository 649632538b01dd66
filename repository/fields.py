"""The fields of Triton's ``ModelConfig``: which Mainspring honours, and what becomes of the others.

The names are those of Triton's ``model_config.proto``. Each field is one of three things: read (`READ`), read
over with a warning that says why nothing is lost or what is (`OVER`), or a reason to refuse the model, which
would compute something else without it (`REFUSED`). docs/repository.md shows the same as a table.
"""

from __future__ import annotations

from collections.abc import Mapping

_ENGINE = "Mainspring compiles the model itself and decides on which worker it runs"
_PLANNED = "the scheduler decides by deadlines when which requests share a batch"
_NO_SLOT = "every sequence has its state in the gateway and needs no slot"
_IN_PLACE = "the gateway hands each request its state"
_NEAREST = "the nearest of all deadlines of a request counts"
_NO_GPU = "a worker is one device, and each runs every model"

READ: Mapping[str, frozenset[str]] = {
    "": frozenset(
        {
            "name", "platform", "backend", "max_batch_size", "input", "output", "version_policy",
            "dynamic_batching", "parameters", "response_cache", "default_model_filename", "instance_group",
            "model_transaction_policy", "sequence_batching", "model_warmup", "model_operations",
        }
    ),
    "input": frozenset({"name", "data_type", "dims", "reshape", "optional"}),
    "output": frozenset({"name", "data_type", "dims", "reshape", "label_filename"}),
    "reshape": frozenset({"shape"}),
    "version_policy": frozenset({"latest", "all", "specific"}),
    "latest": frozenset({"num_versions"}),
    "all": frozenset(),
    "specific": frozenset({"versions"}),
    "dynamic_batching": frozenset(
        {
            "preferred_batch_size", "default_queue_policy", "priority_levels", "default_priority_level",
            "priority_queue_policy",
        }
    ),
    "priority_queue_policy": frozenset({"key", "value"}),
    "priority_queue_policy value": frozenset({"default_timeout_microseconds", "timeout_action"}),
    "default_queue_policy": frozenset({"default_timeout_microseconds", "timeout_action", "max_queue_size"}),
    "sequence_batching": frozenset(
        {"max_sequence_idle_microseconds", "control_input", "state", "direct", "oldest"}
    ),
    "control_input": frozenset({"name", "control"}),
    "control": frozenset({"kind", "int32_false_true", "fp32_false_true", "bool_false_true", "data_type"}),
    "state": frozenset({"input_name", "output_name", "data_type", "dims", "initial_state"}),
    "initial_state": frozenset({"data_type", "dims", "zero_data", "data_file", "name"}),
    "direct": frozenset(),
    "oldest": frozenset({"max_candidate_sequences"}),
    "response_cache": frozenset({"enable"}),
    "instance_group": frozenset({"count", "kind", "name"}),
    "model_transaction_policy": frozenset(),
    "parameters": frozenset({"key", "value"}),
    "value": frozenset({"string_value", "data_type", "dims", "zero_data", "input_data_file"}),
    "model_warmup": frozenset({"name", "batch_size", "inputs", "count"}),
    "inputs": frozenset({"key", "value"}),
    "model_operations": frozenset({"op_library_filename"}),
}  # fmt: skip
"""Fields that are read, by the message that they are in; "" is the file itself."""

OVER: Mapping[str, Mapping[str, str]] = {
    "": {
        "optimization": _ENGINE,
        "cc_model_filenames": _ENGINE,
        "runtime": _ENGINE,
        "metric_tags": "metrics have the labels of docs/operations.md",
    },
    "input": {
        "format": "the tensor is passed on as it comes",
        "allow_ragged_batch": "the rows of a request have one shape",
        "is_non_linear_format_io": "tensors are in row-major order",
    },
    "output": {
        "is_non_linear_format_io": "tensors are in row-major order",
    },
    "dynamic_batching": {
        "max_queue_delay_microseconds": _PLANNED,
        "preserve_ordering": "answers leave when they are ready; requests have ids to tell them apart",
    },
    "default_queue_policy": {"allow_timeout_override": _NEAREST},
    "priority_queue_policy value": {
        "allow_timeout_override": _NEAREST,
        "max_queue_size": "requests of all priorities wait in one queue; bound it in default_queue_policy",
    },
    "value": {"random_data": "the compiler makes samples up where none are given"},
    "state": {"use_same_buffer_for_input_output": _IN_PLACE, "use_growable_memory": _IN_PLACE},
    "direct": {"max_queue_delay_microseconds": _PLANNED, "minimum_slot_utilization": _NO_SLOT},
    "oldest": {
        "max_queue_delay_microseconds": _PLANNED,
        "preferred_batch_size": _PLANNED,
        "preserve_ordering": "requests of a sequence run in order, and those of others need none",
    },
    "instance_group": {
        "gpus": _NO_GPU,
        "secondary_devices": _NO_GPU,
        "profile": _NO_GPU,
        "passive": _NO_GPU,
        "host_policy": _NO_GPU,
        "rate_limiter": _PLANNED,
    },
}
"""Reason why a field is passed over, by the message that it is in."""

APART: Mapping[tuple[str, str], str] = {("priority_queue_policy", "value"): "priority_queue_policy value"}
"""Messages that share their field's name with others: what they are here, by field and name."""

REFUSED: Mapping[str, Mapping[str, str]] = {
    "": {
        "ensemble_scheduling": "an ensemble is several models, and Mainspring runs one for a request; "
        "have the client call one after the other",
        "model_repository_agents": "nothing would check or change the model's files as agents do",
    },
    "sequence_batching": {
        "iterative_sequence": "each request has exactly one answer",
        "generative_sequence": "each request has exactly one answer",
    },
    "model_transaction_policy": {"decoupled": "each request has exactly one answer"},
    "input": {
        "is_shape_tensor": "a shape given as values makes the run's time depend on the data",
    },
    "output": {
        "is_shape_tensor": "a shape given as values makes the run's time depend on the data",
    },
}
"""Reason why the model can't be served with a field, by the message that it is in."""

DATA_TYPES: Mapping[str, str] = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_UINT16": "uint16",
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "bfloat16",
    "TYPE_STRING": "string",
}
"""Triton's names of element types, and numpy's."""

PLATFORMS = frozenset({"", "onnxruntime_onnx"})
BACKENDS = frozenset({"", "onnxruntime"})
INSTANCE_KINDS = frozenset({"KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL"})
