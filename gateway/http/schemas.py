"""What requests and replies look like as JSON, for the description that the server gives of itself."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.gateway.http.control import Change, IndexRequest
from mainspring.gateway.http.shared_memory import Registration
from mainspring.gateway.oip.errors import ErrorBody
from mainspring.gateway.oip.json_data import InferRequest, InferResponse
from mainspring.gateway.oip.metadata import Live, ModelMetadata, ModelReady, Ready, ServerMetadata
from mainspring.gateway.regions import RegionStatus
from mainspring.gateway.statistics_report import StatisticsReport
from mainspring.messages.repository import IndexEntry

Json = dict[str, Any]

REFERENCE = "#/components/schemas/{name}"
EXAMPLE: Json = {
    "id": "one",
    "parameters": {"timeout": 50_000},
    "inputs": [{"name": "data", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, 3, 4]}],
}
"""A request for a model that takes four numbers in a row."""

_OBJECTS = (
    *(ErrorBody, Live, Ready, ModelReady, ServerMetadata, ModelMetadata, StatisticsReport),
    *(IndexRequest, IndexEntry, Change, Registration, RegionStatus, InferRequest, InferResponse),
)


def _schemas() -> dict[str, Json]:
    _, found = msgspec.json.schema_components(_OBJECTS, ref_template=REFERENCE)
    for schema in found.values():
        schema.pop("title", None)
    found["InferRequest"]["examples"] = [EXAMPLE]
    found["Index"] = {"type": "array", "items": {"$ref": REFERENCE.format(name="IndexEntry")}}
    found["Regions"] = {"type": "array", "items": {"$ref": REFERENCE.format(name="RegionStatus")}}
    found["Object"] = {"type": "object", "additionalProperties": True}
    found["List"] = {"type": "array"}
    return found


SCHEMAS = _schemas()
"""By name, as the description's operations refer to them: of the structs that are read and written."""
