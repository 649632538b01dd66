"""An application over emulated members: asked, told what came true, and asked again."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import tritonclient.grpc

import mainspring
from mainspring import Client
from mainspring.gateway.server import Addresses
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

APPLICATION = """
name = "sums"
members = ["one", "other"]
output = "sum"
kind = "value"
span = 10.0
context = true
slo_ms = 5000
[options]
eta = 1.0
floor = 0.0
"""


SLOW_MS = 400
MODELS = [emulated("one", 1_000_000), emulated("other", 1_000_000), emulated("slow", SLOW_MS * 1_000_000)]


class Served(NamedTuple):
    """An application that is served, and a client of its gateway."""

    addresses: Addresses
    client: Client


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        real_controller(MODELS) as controller,
        real_worker("worker", controller),
        serving(
            controller, http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:0"
        ) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 3), 20)
        client.add_graph(APPLICATION)
        yield Served(addresses, client)


def test_it_is_answered_and_learns_from_feedback_once(served: Served) -> None:
    client = served.client
    found = client.infer("sums", {"data": X}, slo_ms=20_000)
    alone = client.infer("one", {"data": X}, slo_ms=20_000)["sum"]
    assert found["prediction"].tolist() == pytest.approx(alone.reshape(-1).tolist())
    assert found["confidence"].tolist() == [1.0] * len(alone)
    learnt = found.timing.learnt
    assert learnt is not None
    assert (set(learnt.models), learnt.missing, learnt.defaults) == ({"one", "other"}, (), 0)
    truth = [0.0] * len(alone)
    assert client.observe("sums", learnt.query_id, truth).joined == len(alone)
    assert client.observe("sums", learnt.query_id, truth).duplicate == len(alone)
    assert client.observe("sums", learnt.query_id + 1, truth).unknown == len(alone)


def test_feedback_without_an_answer_brings_the_inputs(served: Served) -> None:
    told = served.client.observe("sums", None, rewards=[1.0] * len(X), inputs={"data": X}, context="eve")
    assert told.joined == len(X)
    for query_id, inputs in ((None, None), (1, {"data": X})):
        with pytest.raises(mainspring.InvalidRequest, match="give either query_id or inputs"):
            served.client.observe("sums", query_id, [0.0], inputs=inputs)


def test_what_can_not_be_is_said_in_one_sentence(served: Served) -> None:
    client = served.client
    with pytest.raises(mainspring.InvalidRequest, match="'one' is not an application: it learns nothing"):
        client.observe("one", 1, [0.0])
    with pytest.raises(mainspring.InvalidRequest, match="a context is for applications; 'one' is none"):
        client.infer("one", {"data": X}, slo_ms=20_000, context="ann")
    with pytest.raises(mainspring.InvalidRequest, match="the context has 300 bytes; it may have 256"):
        client.infer("sums", {"data": X}, slo_ms=20_000, context="x" * 300)
    with pytest.raises(mainspring.InvalidRequest, match="give either what is true or a reward"):
        client.observe("sums", 1)
    with pytest.raises(mainspring.InvalidRequest, match="has no output 'scores': it has twice, sum"):
        client.add_graph(APPLICATION.replace('"sum"', '"scores"').replace("sums", "others"))
    with pytest.raises(mainspring.InvalidRequest, match="of kind 'scores' it has to be as many floats"):
        client.add_graph(APPLICATION.replace('"value"', '"scores"').replace("sums", "others"))
    with pytest.raises(mainspring.InvalidRequest, match="there is no policy 'exp5'"):
        client.add_graph('policy = "exp5"' + APPLICATION.replace("sums", "others"))


def asked(addresses: Addresses, path: str, body: object) -> tuple[int, Any]:
    """POST JSON below `/v2/models/`; return the status and the answer."""
    request = urllib.request.Request(
        f"{addresses.http}/v2/models/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_over_http_it_says_what_feedback_needs_and_takes_it(served: Served) -> None:
    data = {"name": "data", "shape": list(X.shape), "datatype": "FP32", "data": X.reshape(-1).tolist()}
    body = {"inputs": [data], "parameters": {"slo_ms": 20_000, "context": "ann"}}
    status, found = asked(served.addresses, "sums/infer", body)
    assert (status, [each["name"] for each in found["outputs"]]) == (200, ["prediction", "confidence"])
    told = found["parameters"]
    assert sorted(told["models"]) == ["one", "other"]
    feedback = {"query_id": told["query_id"], "y": 0.0}
    report = {"joined": 1, "late": 0, "duplicate": 0, "unknown": 0}
    assert asked(served.addresses, "sums/observe", feedback) == (200, report)
    rewards = {"query_id": told["query_id"], "reward": [1, 0.5]}
    assert asked(served.addresses, "sums/observe", rewards) == (200, {**report, "duplicate": 1})
    for wrong, said in (
        ({"query_id": told["query_id"]}, "give either what is true or a reward"),
        ({"y": 1}, "query_id"),
        ({**feedback, "y": "cat"}, "is a number for each row"),
    ):
        status, error = asked(served.addresses, "sums/observe", wrong)
        assert status == 400
        assert said in error["error"]
    assert asked(served.addresses, "one/observe", feedback)[0] == 400
    assert asked(served.addresses, "nothing/observe", feedback)[0] == 404


def test_over_grpc_it_is_a_model_like_any_other(served: Served) -> None:
    with tritonclient.grpc.InferenceServerClient(served.addresses.grpc.removeprefix("grpc://")) as client:
        given = tritonclient.grpc.InferInput("data", list(X.shape), "FP32")
        given.set_data_from_numpy(X)
        found = client.infer("sums", [given], parameters={"slo_ms": 20_000, "context": "bob"})
    assert found.as_numpy("confidence").tolist() == [1.0, 1.0]
    query_id = found.get_response().parameters["query_id"].int64_param
    assert served.client.observe("sums", query_id, rewards=[1.0, 0.0]).joined == 2


def test_a_policy_that_selects_asks_one_member_alone(served: Served) -> None:
    text = APPLICATION.replace("sums", "picked").replace("slo_ms", 'policy = "exp3"\nslo_ms')
    served.client.add_graph(text)
    seen: set[str] = set()
    for _ in range(20):
        found = served.client.infer("picked", {"data": X})
        learnt = found.timing.learnt
        assert learnt is not None
        assert len(learnt.models) == 1
        assert [each.rows for each in found.timing.steps].count(0) == 1
        seen.update(learnt.models)
        served.client.observe("picked", learnt.query_id, rewards=[1.0] * len(X))
    assert seen == {"one", "other"}, "without losses both go on being drawn"
    with pytest.raises(mainspring.InvalidRequest, match="has a member 'one': remove it first"):
        served.client.remove_model("one")
    served.client.remove_graph("picked")


def test_what_can_not_be_in_time_is_missing_and_its_average_stands_in(served: Served) -> None:
    client = served.client
    client.add_graph(APPLICATION.replace("sums", "hurried").replace('"other"', '"slow"'))
    client.infer("hurried", {"data": X}, slo_ms=20_000)
    found = client.infer("hurried", {"data": X}, slo_ms=SLOW_MS - 100)
    learnt = found.timing.learnt
    assert learnt is not None
    assert (learnt.models, learnt.missing) == (("one",), ("slow",))
    assert found["confidence"].tolist() == [0.5] * len(X)
    client.remove_graph("hurried")
