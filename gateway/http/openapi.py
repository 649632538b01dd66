"""OpenAPI 3.1 of the server at ``/openapi.json``, and the page at ``/docs`` to try a model."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

from mainspring.gateway.http.applications import BestReport, Feedback, FeedbackReport, Forgotten, Wanted
from mainspring.gateway.http.control import Change, IndexRequest
from mainspring.gateway.http.exchange import Exchange, Handler
from mainspring.gateway.http.openai import EmbeddingsRequest, RerankRequest
from mainspring.gateway.http.shared_memory import Registration
from mainspring.gateway.oip.errors import ErrorBody
from mainspring.gateway.oip.json_data import InferRequest, InferResponse
from mainspring.gateway.oip.metadata import Live, ModelMetadata, ModelReady, Ready, ServerMetadata
from mainspring.gateway.regions import RegionStatus
from mainspring.gateway.statistics_report import StatisticsReport
from mainspring.messages.applications import ApplicationReport, ApplicationSpec
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
    *(
        EmbeddingsRequest,
        RerankRequest,
        Feedback,
        FeedbackReport,
        Wanted,
        BestReport,
        Forgotten,
        ApplicationReport,
        ApplicationSpec,
    ),
)


def _schemas() -> dict[str, Json]:
    _, found = msgspec.json.schema_components(_OBJECTS, ref_template=REFERENCE)
    for schema in found.values():
        schema.pop("title", None)
    found["InferRequest"]["examples"] = [EXAMPLE]
    found["Index"] = {"type": "array", "items": {"$ref": REFERENCE.format(name="IndexEntry")}}
    found["Regions"] = {"type": "array", "items": {"$ref": REFERENCE.format(name="RegionStatus")}}
    found["Applications"] = {"type": "array", "items": {"$ref": REFERENCE.format(name="ApplicationReport")}}
    found["Object"] = {"type": "object", "additionalProperties": True}
    found["List"] = {"type": "array"}
    return found


SCHEMAS = _schemas()
"""Schemas of the structs that are read and written, by the name that the description's operations use."""


_ANY_ERROR = (400, 408, 413, 431, 500, 503)
"""The statuses that every request may meet: limits are kept before it is looked at."""
_TOKEN_ERRORS = (401, 403, 429)
_MEANINGS = {
    200: "Done",
    400: "Something about the request is wrong, and the message says what would be right",
    401: "A token is needed, or the one that was sent is not known",
    403: "The token does not allow this",
    404: "There is no such model, version or region",
    408: "The request took too long to come",
    409: "There is one already",
    413: "The body, or the JSON in it, is larger than it may be",
    415: "The body's Content-Encoding is neither gzip nor deflate",
    429: "The token's rate is used up",
    431: "The headers are larger than they may be",
    499: "The client gave the request up",
    500: "Something failed here, or on a worker",
    501: "This is not served",
    503: "Not now: the deadline can't be met or was missed, there is too much to do, or no controller",
    504: "The deadline can't be met, or was missed",
}


def describe(exchange: Exchange) -> None:
    """Send the description."""
    exchange.reply(200, (_encoded(),))


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(description())


def description() -> Json:
    """Return the description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": "2",
            "summary": "Open Inference Protocol v2 with the extensions of Triton's that clients use",
        },
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _paths() -> Json:
    paths: Json = {
        "/v2": {"get": _operation("server", "Who serves", "ServerMetadata", is_open=True)},
        "/v2/health/live": {"get": _operation("live", "Does the gateway run?", "Live", is_open=True)},
        "/v2/health/ready": {"get": _operation("ready", "Can requests be served?", "Ready", is_open=True)},
        "/openapi.json": {"get": _operation("openapi", "This description", "Object", is_open=True)},
        "/v2/models/stats": {
            "get": _operation("allStatistics", "Statistics of all models", "StatisticsReport")
        },
        **_models("/v2/models/{model}", ""),
        **_models("/v2/models/{model}/versions/{version}", "OfVersion"),
        **_applications(),
        "/v2/repository/index": {
            "post": _operation("index", "Models that could be served", "Index", body="IndexRequest")
        },
    }
    for change in ("load", "unload"):
        operation = _operation(
            change, f"{change.capitalize()} a model of the repository", "Object", (404, 409, 501), "Change"
        )
        path = f"/v2/repository/models/{{model}}/{change}"
        paths[path] = {"post": operation, "parameters": _path_parameters(path)}
    return {**paths, **_texts(), **_settings(), **_memory("system"), **_memory("cuda")}


def _applications() -> Json:
    told = "Say what came true of an application's answer"
    observe = _operation("observe", told, "FeedbackReport", (404, 415), "Feedback", required=True)
    top_k = _operation("topK", "The best items for a user", "BestReport", (404, 415), "Wanted", required=True)

    forget = _operation("forget", "Erase a context", "Object", (404, 415), "Forgotten", required=True)
    put = _operation(
        "putApplication", "Serve it", "ApplicationReport", (415,), "ApplicationSpec", required=True
    )
    found: Json = {
        "/v2/models/{model}/observe": {"post": observe},
        "/v2/models/{model}/topk": {"post": top_k},
        "/v2/applications/{model}/forget": {"post": forget},
        "/v2/applications": {"get": _operation("applications", "What was learnt", "Applications")},
        "/v2/applications/{model}": {
            "get": _operation("application", "What was learnt of one", "ApplicationReport", (404,)),
            "put": put,
            "delete": _operation("removeApplication", "Serve it no more", "Object", (404,)),
        },
    }
    for path, item in found.items():
        if "{model}" in path:
            item["parameters"] = _path_parameters(path)
    return found


def _texts() -> Json:
    """Return OpenAI's form and TEI's, whose errors have a form of their own."""
    embed = _operation(
        "embeddings", "Embed texts", "Object", (404, 415, 504), "EmbeddingsRequest", required=True
    )
    rerank = _operation(
        "rerank", "Compare texts with one", "List", (404, 415), "RerankRequest", required=True
    )
    found: Json = {
        "/v1/models": {"get": _operation("textModels", "Models that embed", "Object")},
        "/v1/models/{model}": {"get": _operation("textModel", "One of them", "Object", (404,))},
        "/v1/embeddings": {"post": {**embed, "parameters": [_SLO_HEADER]}},
        "/rerank": {"post": {**rerank, "parameters": [_SLO_HEADER]}},
    }
    found["/v1/models/{model}"]["parameters"] = _path_parameters("/v1/models/{model}")
    for path, item in found.items():
        for operation in item.values() if path.startswith("/v1/") else ():
            for status, response in operation["responses"].items() if isinstance(operation, dict) else ():
                if status != "200":
                    response["content"] = _json("Object")
    return found


def _models(base: str, suffix: str) -> Json:
    described = {
        "": _operation(f"model{suffix}", "A model's tensors", "ModelMetadata", (404,)),
        "/ready": _operation(f"modelReady{suffix}", "Are requests taken?", "ModelReady", (404,)),
        "/config": _operation(f"modelConfig{suffix}", "Triton's ModelConfig", "Object", (404,)),
        "/stats": _operation(f"modelStatistics{suffix}", "Its statistics", "StatisticsReport", (404,)),
    }
    infer = _operation(
        f"infer{suffix}",
        "Run the model",
        "InferResponse",
        (404, 415, 499, 501),
        "InferRequest",
        required=True,
    )
    infer["parameters"] = [
        _SLO_HEADER,
        _header("inference-header-content-length", "Bytes of JSON that binary tensors follow", "integer"),
    ]
    binary = {"schema": {"type": "string", "format": "binary"}}
    infer["requestBody"]["content"]["application/octet-stream"] = binary
    infer["responses"]["200"]["content"]["application/octet-stream"] = binary
    found: dict[str, Json] = {f"{base}{path}": {"get": operation} for path, operation in described.items()}
    found[f"{base}/infer"] = {"post": infer}
    for name in ("generate", "generate_stream"):
        found[f"{base}/{name}"] = {"post": _generate(f"{name}{suffix}")}
    for path in found.values():
        path["parameters"] = _path_parameters(base)
    return found


def _generate(name: str) -> Json:
    """Return the operation of one row's inputs by name."""
    found = _operation(name, "Run the model on values", "Object", (404, 415, 499), "Object", required=True)
    found["parameters"] = [_SLO_HEADER]
    if "stream" in name:
        content = found["responses"]["200"]["content"]
        found["responses"]["200"]["content"] = {"text/event-stream": content["application/json"]}
    return found


def _settings() -> Json:
    found: Json = {}
    for path, name, arguments in (
        ("/v2/trace/setting", "trace", ""),
        ("/v2/models/{model}/trace/setting", "modelTrace", "{model}"),
        ("/v2/logging", "log", ""),
    ):
        found[path] = {
            "get": _operation(f"{name}Settings", "Triton's settings", "Object"),
            "post": _operation(f"{name}Change", "Change them", "Object", (501,), "Object"),
        }
        if arguments:
            found[path]["parameters"] = _path_parameters(path)
    return found


def _memory(kind: str) -> Json:
    base = f"/v2/{kind}sharedmemory"
    name = f"{kind}Memory"
    errors: tuple[int, ...]
    if kind == "system":
        texts = "The client's regions", "Forget them", "One of them", "Register one", "Forget one"
        errors, registration, regions = (409, 501), "Registration", "Regions"
    else:
        texts = "No regions", "Nothing to do", "There is none", "Not served", "Nothing to do"
        errors, registration, regions = (501,), "Object", "List"
    statuses, all_gone, status, register, gone = texts
    found: Json = {
        f"{base}/status": {"get": _operation(f"{name}Status", statuses, regions)},
        f"{base}/unregister": {"post": _operation(f"{name}UnregisterAll", all_gone, "Object")},
        f"{base}/region/{{region}}/status": {
            "get": _operation(f"{name}RegionStatus", status, regions, (404,))
        },
        f"{base}/region/{{region}}/register": {
            "post": _operation(f"{name}Register", register, "Object", errors, registration)
        },
        f"{base}/region/{{region}}/unregister": {"post": _operation(f"{name}Unregister", gone, "Object")},
    }
    for path, item in found.items():
        if "{region}" in path:
            item["parameters"] = _path_parameters(path)
    return found


def _operation(
    name: str,
    summary: str,
    schema: str,
    errors: tuple[int, ...] = (),
    body: str = "",
    *,
    required: bool = False,
    is_open: bool = False,
) -> Json:
    """Return an operation that answers with a schema, or with an error of these statuses."""
    statuses = sorted({*errors, *_ANY_ERROR, *(() if is_open else _TOKEN_ERRORS)})
    responses = {
        "200": _response(200, schema),
        **{str(each): _response(each, "ErrorBody") for each in statuses},
    }
    found: Json = {"operationId": name, "summary": summary, "responses": responses}
    if is_open:
        found["security"] = []
    if body:
        found["requestBody"] = {"required": required, "content": _json(body)}
    return found


def _response(status: int, schema: str) -> Json:
    return {"description": _MEANINGS[status], "content": _json(schema)}


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=schema)}}}


def _path_parameters(path: str) -> list[Json]:
    kinds: Json = {
        "model": {"type": "string", "minLength": 1},
        "version": {"type": "integer", "minimum": 1},
        "region": {"type": "string", "minLength": 1},
    }
    return [
        {"name": name, "in": "path", "required": True, "schema": kind}
        for name, kind in kinds.items()
        if f"{{{name}}}" in path
    ]


def _header(name: str, meaning: str, kind: str) -> Json:
    return {"name": name, "in": "header", "description": meaning, "schema": {"type": kind, "minimum": 0}}


_SLO_HEADER = _header("x-mainspring-slo-ms", "Milliseconds until the answer is wanted", "number")


_FILE = Path(__file__).with_name("docs.html")
_TYPE = b"text/html; charset=utf-8"


def page() -> Handler:
    """Return the handler that sends the page to try a model in a browser; it asks only this gateway."""
    text = _FILE.read_text(encoding="utf-8")
    content, more = text.encode(), _headers(text)

    def send(exchange: Exchange) -> None:
        exchange.reply(200, (content,), _TYPE, more)

    return send


def _headers(text: str) -> bytes:
    """Return what keeps the page from running, fetching or being framed by anything else."""
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_digest(text, 'script')}",
            f"style-src {_digest(text, 'style')}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
    return (
        f"content-security-policy: {policy}\r\nx-content-type-options: nosniff\r\n"
        "referrer-policy: no-referrer\r\ncache-control: no-cache\r\n"
        "cross-origin-opener-policy: same-origin\r\ncross-origin-resource-policy: same-origin\r\n"
    ).encode()


def _digest(text: str, tag: str) -> str:
    """Return how a policy names what stands between the tags."""
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert found is not None, f"the page has no <{tag}>"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
