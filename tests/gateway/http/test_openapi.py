"""The description that the server gives of itself, held against what it does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring.gateway.http.openapi import EXAMPLE, description
from tests.gateway.http.conftest import Served, faked
from tests.gateway.http.raw import Peer, infer_body

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance", "unsupported_method"),
)
KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", type(None): "null"}
VALUES = {"model": "double", "version": "1", "region": "r"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, item in description()["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]


@pytest.mark.parametrize(("method", "path", "operation"), operations())
def test_everything_described_is_there(
    served: Served, method: str, path: str, operation: dict[str, Any]
) -> None:
    with Peer(served.host) as peer:
        for name, value in VALUES.items():
            path = path.replace(f"{{{name}}}", value)
        body = infer_body() if path.endswith("/infer") else b"{}" if method == "post" else b""
        reply = peer.ask(method.upper(), path, body)
        assert str(reply.status) in operation["responses"]
        assert reply.status != 500
        missing = reply.status == 404 and "there is nothing here" in reply.json["error"]
        assert not missing, f"{method} {path} is described and not served"


def test_names_and_references_are_sound() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    schemas = description()["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", repr(description()))) <= schemas.keys()


def misfit(value: Any, schema: dict[str, Any]) -> str:
    """Return the first place in a reply that its schema does not describe; empty if there is none."""
    if "$ref" in schema:
        return misfit(value, description()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        found = [misfit(value, each) for each in schema["anyOf"]]
        return "" if "" in found else found[0]
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{value!r} is none of {schema['enum']}"
    kind, allowed = KINDS.get(type(value), "number"), schema.get("type", [])
    if kind not in allowed and not (kind == "integer" and "number" in allowed):
        return f"{value!r} is not of type {allowed}"
    if isinstance(value, list):
        return next(filter(None, (misfit(each, schema["items"]) for each in value if "items" in schema)), "")
    if not isinstance(value, dict) or "properties" not in schema:
        return ""
    if value.keys() - schema["properties"].keys() or schema["required"] - value.keys():
        return f"{sorted(value)} are not the fields {sorted(schema['properties'])}"
    return next(filter(None, (misfit(each, schema["properties"][key]) for key, each in value.items())), "")


@pytest.mark.parametrize(("method", "path", "operation"), operations())
def test_what_is_read_and_written_is_what_is_described(
    served: Served, method: str, path: str, operation: dict[str, Any]
) -> None:
    with Peer(served.host) as peer:
        for name, value in VALUES.items():
            path = path.replace(f"{{{name}}}", value)
        body = infer_body() if path.endswith("/infer") else b"{}" if method == "post" else b""
        assert peer.ask("POST", "/v2/models/double/infer", infer_body()).status == 200, (
            "statistics have numbers"
        )
        reply = peer.ask(method.upper(), path, body)
        described = operation["responses"][str(reply.status)]["content"]["application/json"]["schema"]
        assert not misfit(reply.json, described)
    if path.endswith("/infer"):
        asked = operation["requestBody"]["content"]["application/json"]["schema"]
        assert not misfit(json.loads(body), asked)
        assert not misfit(EXAMPLE, asked)


def test_the_description_is_served(served: Served) -> None:
    with Peer(served.host) as peer:
        found = peer.ask("GET", "/openapi.json").json
    assert found["openapi"] == "3.1.0"
    assert found["paths"].keys() == description()["paths"].keys()


def schemathesis() -> str | None:
    """Return the program's path, if it is installed."""
    beside = Path(sys.executable).with_name("schemathesis")
    named = os.environ.get("SCHEMATHESIS") or (str(beside) if beside.exists() else "schemathesis")
    return shutil.which(named)


def test_no_request_makes_the_server_fail_or_say_what_it_does_not_describe(tmp_path: Path) -> None:
    program = schemathesis()
    if program is None:
        pytest.skip("schemathesis is not installed: `make schemathesis` installs it and runs this")
    config = Path(__file__).with_name("schemathesis.toml")
    with faked(default_slo_ms=200.0) as served:
        command = [program, "--config-file", str(config), "run", f"http://{served.host}/openapi.json"]
        options = ["--max-examples=25", "--request-timeout=10", "--seed=1", f"--checks={','.join(CHECKS)}"]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=170, cwd=tmp_path
        )
        with Peer(served.host) as peer:
            assert peer.ask("POST", "/v2/models/double/infer", infer_body()).status == 200
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert re.search(r"\d{3,} generated", done.stdout), "it has hardly tried anything"
