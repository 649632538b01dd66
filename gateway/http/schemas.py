"""What requests and replies look like as JSON, for the description that the server gives of itself."""

from __future__ import annotations

from typing import Any

from mainspring.gateway.oip.datatypes import BYTES, DTYPES

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_BOOL: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_PARAMETERS: Json = {"type": "object", "additionalProperties": True}


def _object(required: tuple[str, ...], **properties: Any) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_DATATYPE: Json = {"type": "string", "enum": [*DTYPES, BYTES]}
_SHAPE = _list({"type": "integer"})
_DURATION = _object(("count", "ns"), count=_COUNT, ns=_COUNT)
_TENSOR = _object(
    ("name", "shape", "datatype"),
    name=_TEXT,
    shape=_SHAPE,
    datatype=_DATATYPE,
    parameters=_object((), binary_data_size=_COUNT),
    data={"type": "array"},
)

EXAMPLE: Json = {
    "id": "one",
    "parameters": {"timeout": 50_000},
    "inputs": [{"name": "data", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, 3, 4]}],
}
"""A request for a model that takes four numbers in a row."""

SCHEMAS: dict[str, Json] = {
    "Object": {"type": "object", "additionalProperties": True},
    "List": {"type": "array"},
    "Error": _object(
        ("error",),
        error={**_TEXT, "description": "What was wrong, and what would be right"},
        reason={**_TEXT, "description": "A code of docs/messages.md"},
        earliest_finish_ms={"type": "number", "description": "When an answer was possible, from this reply"},
    ),
    "Live": _object(("live",), live=_BOOL),
    "Ready": _object(("ready",), ready=_BOOL),
    "ModelReady": _object(("name", "version", "ready"), name=_TEXT, version=_TEXT, ready=_BOOL),
    "ServerMetadata": _object(
        ("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "TensorMetadata": _object(("name", "datatype", "shape"), name=_TEXT, datatype=_DATATYPE, shape=_SHAPE),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_ref("TensorMetadata")),
        outputs=_list(_ref("TensorMetadata")),
    ),
    "Statistics": _object(
        ("model_stats",),
        model_stats=_list(
            _object(
                ("name", "version", "inference_count", "execution_count", "inference_stats", "batch_stats"),
                name=_TEXT,
                version=_TEXT,
                last_inference=_COUNT,
                inference_count=_COUNT,
                execution_count=_COUNT,
                inference_stats={"type": "object", "additionalProperties": _DURATION},
                batch_stats=_list({"type": "object"}),
            )
        ),
    ),
    "IndexRequest": _object((), ready=_BOOL),
    "Index": _list(
        _object(("name", "version", "state"), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)
    ),
    "Change": _object((), parameters=_PARAMETERS),
    "RequestInput": _TENSOR,
    "RequestOutput": _object(
        ("name",),
        name=_TEXT,
        parameters=_object((), binary_data=_BOOL, classification=_COUNT),
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters={
            "type": "object",
            "properties": {
                "timeout": {**_COUNT, "description": "Microseconds until the answer is wanted; 0: none"},
                "slo_ms": {"type": "number", "exclusiveMinimum": 0},
                "priority": _COUNT,
                "binary_data_output": _BOOL,
            },
        },
        inputs=_list(_ref("RequestInput")),
        outputs=_list(_ref("RequestOutput")),
    )
    | {"examples": [EXAMPLE]},
    "ResponseOutput": _TENSOR,
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_object(
            ("queue_ns", "batch_size", "cold_start", "worker"),
            queue_ns=_COUNT,
            batch_size=_COUNT,
            cold_start=_BOOL,
            worker=_TEXT,
            deadline_ns_left={"type": "integer"},
            cached=_BOOL,
        ),
        outputs=_list(_ref("ResponseOutput")),
    ),
}
"""By name, as the description's operations refer to them."""
