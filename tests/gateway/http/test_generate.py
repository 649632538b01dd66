"""``generate`` and ``generate_stream``: values by name in, values by name out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, Reply

ROW = [1, 2.5, 3, 4]
DOUBLED = {"model_name": "double", "model_version": "1", "twice": [2.0, 5.0, 6.0, 8.0], "sum": 10.5}


def ask(served: Served, path: str, body: Any, **headers: str) -> Reply:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Peer(served.host) as peer:
        return peer.ask("POST", f"/v2/models/{path}", text, **headers)


@pytest.mark.parametrize("row", [ROW, [[1, 2.5], [3, 4]]])
def test_a_row_of_values_becomes_values_by_the_outputs_names(served: Served, row: Any) -> None:
    reply = ask(served, "double/versions/1/generate", {"data": row, "max_tokens": 5, "id": "seven"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == {**DOUBLED, "id": "seven"}


def test_a_stream_has_one_event_and_errors_are_plain_json(served: Served) -> None:
    reply = ask(served, "double/generate_stream", {"data": ROW})
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert reply.body.startswith(b"data: {")
    assert reply.body.endswith(b"}\n\n")
    assert json.loads(reply.body[6:]) == DOUBLED
    reply = ask(served, "double/generate_stream", {"data": [1]})
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")


def test_text_comes_and_goes_as_it_is(real: Served) -> None:
    for path in ("generate", "generate_stream"):
        reply = ask(real, f"text/{path}", {"in": "words"})
        said = json.loads(reply.body.removeprefix(b"data: "))
        assert said == {"model_name": "text", "model_version": "1", "out": ["", ""]}
    reply = ask(real, "text/generate", {"in": "far more words than fit"})
    assert reply.status == 400
    assert "'in'" in reply.json["error"]


def test_several_inputs_and_outputs(real: Served) -> None:
    reply = ask(real, "pair/generate", {"a": [1, 2], "b": [[1, 2], [3, 4]]})
    assert reply.json["y"] == [0, 0]
    assert reply.json["z"] is False


def test_numbers_that_json_has_not(served: Served) -> None:
    reply = ask(served, "double/generate", b'{"data": [NaN, 1, 2, Infinity], "id": "n"}')
    said = json.loads(reply.body)
    assert repr(said["twice"]) == "[nan, 2.0, 4.0, inf]"
    assert repr(said["sum"]) == "nan"
    assert said["id"] == "n"


def test_a_deadline_is_kept_wherever_it_is_said(served: Served) -> None:
    for body in ({"parameters": {"timeout": 50_000}}, {"timeout": 50_000}):
        reply = ask(served, "reject/generate", {"data": ROW, **body})
        assert (reply.status, reply.json["reason"]) == (503, "deadline_unreachable")
    assert ask(served, "double/generate", {"data": ROW, "parameters": {"timeout": -1}}).status == 400
    assert ask(served, "double/generate", {"data": ROW}, x_mainspring_slo_ms="x").status == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "data"),
        ({"data": 1}, "input 'data' has 1 values; its shape makes 4"),
        ({"data": "text"}, "data"),
        ({"data": None}, "data"),
        ([1], "an object with a value"),
        (b"{", "can't be read"),
        (b"[NaN]", "can't be read"),
        ({"data": ROW, "parameters": [1]}, "can't be read"),
        ({"data": ROW, "id": 5}, "can't be read"),
        (b'{"data": [1,2,3,4], "more": [' + b"1," * 40_000 + b"1]}", "values"),
    ],
)
def test_what_is_wrong_is_refused(served: Served, body: Any, said: str) -> None:
    reply = ask(served, "double/generate", body)
    assert reply.status == 400
    assert said in reply.json["error"]


def test_other_models_and_methods(served: Served) -> None:
    assert ask(served, "nothing/generate", {"data": ROW}).status == 404
    with Peer(served.host) as peer:
        assert peer.ask("GET", "/v2/models/double/generate").status == 405
        too_long = json.dumps({"data": ROW, "more": "x" * (5 << 20)}).encode()
        assert peer.ask("POST", "/v2/models/double/generate", too_long).status == 413
