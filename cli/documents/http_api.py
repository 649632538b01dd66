"""The HTTP API as a page, written from the gateway's OpenAPI description: what docs/http-api.md holds.

``python -m mainspring.cli.documents.http_api > docs/http-api.md`` writes it; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mainspring.gateway.http.openapi import EXAMPLE, description

Json = dict[str, Any]

_INTRODUCTION = (
    "# HTTP API\n\n"
    "Every path, with what it takes and returns. `python -m mainspring.cli.documents.http_api` writes this "
    "page from the description that the gateway itself gives in OpenAPI 3.1 at `/openapi.json`; "
    "[HTTP](http.md) explains tensors, deadlines, limits and errors.\n\n"
    "Requests and replies are JSON. Every path but those marked *open* needs a [token](tokens.md) where the "
    "gateway has tokens."
)


def http_api_page() -> str:
    """Return the page."""
    described = description()
    parts = [_INTRODUCTION, "## Paths", *_paths(described["paths"]), "## Statuses", _statuses(described)]
    example = json.dumps(EXAMPLE, indent=1)
    parts += ["## An inference request", f"```json\n{example}\n```", "## Objects"]
    parts += [_object(name, schema) for name, schema in described["components"]["schemas"].items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paths(paths: Json) -> Iterator[str]:
    for path, item in paths.items():
        for method, operation in item.items():
            if method != "parameters":
                yield f"### {method.upper()} {path}"
                is_open = " *Open.*" if operation.get("security") == [] else ""
                yield f"{operation['summary']}{'' if operation['summary'].endswith('?') else '.'}{is_open}"
                yield _operation(operation)


def _operation(operation: Json) -> str:
    """Return what an operation takes and returns, as a list."""
    lines = []
    if "requestBody" in operation:
        lines.append(f"* takes {_body(operation['requestBody'])}")
    lines += [
        f"* header `{each['name']}`: {each['description']} ({each['schema']['type']})"
        for each in operation.get("parameters", ())
    ]
    lines.append(f"* returns {_body(operation['responses']['200'])}")
    errors = ", ".join(status for status in operation["responses"] if status != "200")
    lines.append(f"* or [ErrorBody](#errorbody) with {errors}")
    return "\n".join(lines)


def _body(body: Json) -> str:
    kinds = body["content"]
    if events := kinds.get("text/event-stream"):
        return f"{_type(events['schema'])}, in an event"
    text = _type(kinds["application/json"]["schema"])
    return f"{text}, or binary data behind it" if "application/octet-stream" in kinds else text


def _statuses(described: Json) -> str:
    meanings: dict[str, str] = {}
    for item in described["paths"].values():
        for method, operation in item.items():
            if method != "parameters":
                for status, response in operation["responses"].items():
                    meanings[status] = response["description"]
    rows = [f"| {status} | {meanings[status]} |" for status in sorted(meanings)]
    return "\n".join(["| status | meaning |", "|---|---|", *rows])


def _object(name: str, schema: Json) -> str:
    """Return a section with the fields of one schema."""
    properties, meaning = schema.get("properties"), schema.get("description", "").replace("``", "`")
    if not properties:
        text = _type(schema)
        return "\n\n".join(filter(None, (f"### {name}", meaning, f"{text[0].upper()}{text[1:]}.")))
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | {_type(kind)} | {'yes' if field in required else 'no'} | "
        f"{kind.get('description', '')} |"
        for field, kind in properties.items()
    ]
    return "\n".join(
        [
            f"### {name}",
            "",
            meaning,
            "",
            "| field | type | always there | meaning |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def _type(schema: Json) -> str:
    """Return a schema in a few words, with links to those that have a section."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(_type(each) for each in schema[key])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind == "object" and schema.get("properties"):
        fields = ", ".join(f"`{name}` {_type(each)}" for name, each in schema["properties"].items())
        return f"object: {fields}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


if __name__ == "__main__":
    print(http_api_page(), end="")
