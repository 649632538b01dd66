"""Applications over HTTP: put, shown with what was learnt, changed, removed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client
from tests.gateway.fakes import serving, wait_until
from tests.gateway.http.conftest import faked
from tests.gateway.http.raw import Peer, Reply
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

SPEC = {
    "members": ["one", "other"],
    "output": "sum",
    "kind": "value",
    "span": 10.0,
    "slo_ms": 20_000,
    "options": {"eta": 1.0, "floor": 0},
}
PATH = "/v2/applications/sums"
DATA = {"name": "data", "shape": list(X.shape), "datatype": "FP32", "data": X.reshape(-1).tolist()}


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    names = ("one", "other", "third")
    with (
        real_controller([emulated(name, 1_000_000) for name in names]) as controller,
        real_worker("worker", controller),
        serving(controller, http_address="http://127.0.0.1:0") as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, len(names)), 20)
        yield addresses.http.removeprefix("http://")


def ask(host: str, method: str, path: str, body: object = None, **headers: str) -> Reply:
    with Peer(host) as peer:
        sent = b"" if body is None else json.dumps(body).encode()
        return peer.ask(method, path, sent, **headers)


def put(host: str, **changes: object) -> Reply:
    return ask(host, "PUT", PATH, {**SPEC, **changes})


def test_an_application_is_put_shown_changed_and_removed(host: str) -> None:
    assert ask(host, "GET", "/v2/applications").json == []
    begun = put(host)
    assert begun.status == 200, begun.json
    assert begun.json["spec"] == {"name": "sums", **SPEC, "options": {"eta": 1.0, "floor": 0}}
    answer = ask(host, "POST", "/v2/models/sums/infer", {"inputs": [DATA]}).json
    feedback = {"query_id": answer["parameters"]["query_id"], "y": [2.0, 2.0]}
    for _ in range(2):
        ask(host, "POST", "/v2/models/sums/observe", feedback)
    found = ask(host, "GET", PATH).json
    assert [each["member"] for each in found["members"]] == ["one", "other"]
    assert [(each["weight"], each["asked"], each["judged"]) for each in found["members"]] == [(0.5, 1, 2)] * 2
    assert (found["requests"], found["rows"], found["confidence"], found["regret"]) == (1, 2, 1.0, 0.0)
    assert (found["joined"], found["duplicate"], found["late"], found["unknown"]) == (2, 2, 0, 0)
    assert found["loss"] == found["members"][0]["loss"] > 0
    assert ask(host, "GET", "/v2/applications").json == [found]
    changed = put(host, members=["one", "third"], policy="exp3").json
    assert [(each["member"], each["judged"]) for each in changed["members"]] == [("one", 2), ("third", 0)]
    assert changed["joined"] == 2, "what was learnt of a member that stays is kept"
    assert ask(host, "DELETE", PATH).json == {}
    assert ask(host, "GET", PATH).status == ask(host, "DELETE", PATH).status == 404
    assert ask(host, "POST", "/v2/models/sums/infer", {"inputs": [DATA]}).status == 404


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "others"}, "the name is 'others'; the call's is 'sums'"),
        ({"memberz": []}, "did you mean 'members'?"),
        ({"members": "one"}, "members"),
        ({"output": ""}, "needs the key 'output'"),
        ({"members": ["two"]}, "member 'two': model 'two' is not served"),
        ({"confidence": 0.5}, "has confidence without default"),
    ],
)
def test_what_can_not_be_put_is_said_in_one_line(host: str, changes: dict[str, Any], said: str) -> None:
    refused = put(host, **changes)
    assert refused.status == 400
    assert said in refused.json["error"]
    assert "\n" not in refused.json["error"]
    assert ask(host, "GET", "/v2/applications").json == []


CODE = [
    ({"policy": "os:system"}, "policy 'os:system'"),
    ({"loss": "os:system"}, "loss 'os:system'"),
    ({"policy": "linear", "options": {"table": "/etc/passwd"}}, "table '/etc/passwd'"),
]


@pytest.mark.parametrize(("changes", "said"), CODE, ids=[said for _, said in CODE])
def test_code_and_files_are_not_taken_from_just_anyone(
    host: str, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    spec = {"context": True, **changes} if changes.get("policy") == "linear" else {**SPEC, **changes}
    refused = ask(host, "PUT", PATH, spec)
    assert refused.status == 403
    assert f"{said} of application 'sums' is for the operator" in refused.json["error"]
    path = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"root").hexdigest()
    path.write_text(f'[[token]]\nname = "root"\nsha256 = "{digest}"\nmodels = ["*"]\nadmin = true\n')
    with faked(token_file=str(path)) as served:
        taken = ask(served.host, "PUT", PATH, spec, authorization="Bearer root")
        assert "is for the operator" not in taken.json.get("error", "")


def test_a_context_is_forgotten(host: str) -> None:
    put(host, context=True)
    body = {"inputs": [DATA], "parameters": {"context": "ann"}}
    answers = [ask(host, "POST", "/v2/models/sums/infer", body).json["parameters"] for _ in range(2)]
    feedback = {"query_id": answers[0]["query_id"], "reward": [0.5, 0.5]}
    assert ask(host, "POST", "/v2/models/sums/observe", feedback).json["joined"] == 2
    found = ask(host, "GET", PATH).json
    assert (found["contexts"], found["waiting"]) == (1, 2)
    assert ask(host, "POST", f"{PATH}/forget", {"context": "ann"}).json == {}
    assert ask(host, "GET", PATH).json["contexts"] == 0
    feedback["query_id"] = answers[1]["query_id"]
    assert ask(host, "POST", "/v2/models/sums/observe", feedback).json["late"] == 2
    assert ask(host, "POST", f"{PATH}/forget", {"context": 7}).status == 400
    put(host)
    refused = ask(host, "POST", f"{PATH}/forget", {"context": "ann"})
    assert "keeps no state for each context: its key context is false" in refused.json["error"]
    ask(host, "DELETE", PATH)


def test_a_model_is_no_application(host: str) -> None:
    refused = ask(host, "PUT", "/v2/applications/one", SPEC).json["error"]
    assert refused.endswith("a model has this name: choose another one")
    assert ask(host, "DELETE", "/v2/applications/one").status == 404
    nothing = ask(host, "GET", "/v2/applications/sum").json["error"]
    assert nothing == "unknown_model: there is no application 'sum'"


def test_changes_need_a_token_that_may_administer_and_no_page_of_another_site(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"search").hexdigest()
    path.write_text(f'[[token]]\nname = "search"\nsha256 = "{digest}"\nmodels = ["*"]\n')
    with faked(token_file=str(path)) as served:
        shown = {"authorization": "Bearer search"}
        assert ask(served.host, "GET", "/v2/applications").status == 401
        assert ask(served.host, "GET", "/v2/applications", **shown).json == []
        for method in ("PUT", "DELETE"):
            assert ask(served.host, method, PATH, SPEC, **shown).status == 403
    with faked() as served:
        assert ask(served.host, "PUT", PATH, SPEC, origin="http://elsewhere.example").status == 403
