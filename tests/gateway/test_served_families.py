"""A family of models through a controller, a gateway and a worker with an emulated device."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import mainspring
from mainspring import AsyncClient, Client
from mainspring.gateway.server import Addresses
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

FAMILY = """
name = "classify"
members = ["best", "small"]
score = [0.8, 0.7]
"""
BEST_MS = 400
MODELS = [emulated("best", BEST_MS * 1_000_000), emulated("small", 1_000_000)]
SOON_MS, LATER_MS = BEST_MS - 50, 20_000
"""Deadlines: of ``small`` alone, and of both."""
CROWD, CROWD_MS = 40, 4_000
"""Requests at once, of two rows each. The best member runs 8 rows together, so that it could do 40 at most in
their time, if all came at one instant."""


class Served(NamedTuple):
    """A family that is served, and a client of its gateway."""

    addresses: Addresses
    client: Client


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        real_controller(MODELS) as controller,
        real_worker("one", controller),
        serving(
            controller, http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:0"
        ) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 20)
        for name in ("best", "small"):
            client.infer(name, {"data": X}, slo_ms=20_000)
        client.add_graph(FAMILY)
        yield Served(addresses, client)


def test_the_best_member_in_time_answers(served: Served) -> None:
    found = served.client.infer("classify", {"data": X}, slo_ms=LATER_MS)
    assert [(each.model, each.rows) for each in found.timing.steps] == [("best", 2)]
    found = served.client.infer("classify", {"data": X}, slo_ms=SOON_MS)
    assert [(each.model, each.rows) for each in found.timing.steps] == [("small", 2)]


def test_a_crowd_gets_smaller_answers_instead_of_none(served: Served) -> None:
    crowd = [served.client.submit("classify", {"data": X}, slo_ms=CROWD_MS) for _ in range(CROWD)]
    members = Counter(each.result(PATIENCE_S).timing.steps[0].model for each in crowd)
    assert set(members) == {"best", "small"}
    assert sum(members.values()) == CROWD


def test_what_is_less_than_a_client_takes_is_refused(served: Served) -> None:
    client = served.client
    assert client.infer("classify", {"data": X}, slo_ms=LATER_MS, at_least=0.8)["sum"].shape == (2,)
    with pytest.raises(
        mainspring.DeadlineUnreachable, match=r"it takes at least 0\.8; 'small' of 0\.7 could"
    ):
        client.infer("classify", {"data": X}, slo_ms=SOON_MS, at_least=0.8)


@pytest.mark.parametrize(
    ("model", "at_least", "says"),
    [
        ("classify", 0.9, r"at_least is 0\.9; .* 'classify' has answers of up to 0\.8"),
        ("classify", -1, r"at_least is -1; it has to be above 0"),
        ("classify", float("nan"), r"at_least is nan; it has to be above 0"),
        ("small", 0.5, "at_least is for families of models, and 'small' is none"),
    ],
)
def test_a_score_that_none_has_is_refused_by_both_clients(
    served: Served, model: str, at_least: float, says: str
) -> None:
    with pytest.raises(mainspring.InvalidRequest, match=says):
        served.client.infer(model, {"data": X}, at_least=at_least)

    async def ask() -> None:
        async with AsyncClient(served.addresses.zeromq) as client:
            with pytest.raises(mainspring.InvalidRequest, match=says):
                await client.infer(model, {"data": X}, at_least=at_least)

    asyncio.run(ask())


@pytest.mark.parametrize("at_least", ["0.75", None, [0.75], 10**400])
def test_what_is_no_number_is_no_score(served: Served, at_least: Any) -> None:
    with pytest.raises(TypeError, match=r"at_least is .*; pass a score of the family as a number"):
        served.client.infer("classify", {"data": X}, at_least=at_least)


def test_an_asynchronous_client_may_ask_for_a_score(served: Served) -> None:
    async def ask() -> tuple[str, str]:
        async with AsyncClient(served.addresses.zeromq) as client:
            best = await client.infer("classify", {"data": X}, slo_ms=LATER_MS, at_least=0.75)
            small = client.submit("classify", {"data": X}, slo_ms=SOON_MS, at_least=0.7)
            result = await asyncio.wrap_future(small)
            return best.timing.steps[0].model, result.timing.steps[0].model

    assert asyncio.run(ask()) == ("best", "small")


def over_http(served: Served, **parameters: object) -> tuple[int, dict[str, Any]]:
    """Send a request of the open inference protocol; return status and body."""
    tensor = {"name": "data", "shape": X.shape, "datatype": "FP32", "data": X.tolist()}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    url = f"{served.addresses.http}/v2/models/classify/infer"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_parameter_over_http(served: Served) -> None:
    status, answer = over_http(served, at_least=0.75, slo_ms=LATER_MS)
    assert (status, answer["parameters"]["member"]) == (200, "best")
    status, answer = over_http(served, slo_ms=SOON_MS)
    assert (status, answer["parameters"]["member"]) == (200, "small")
    status, answer = over_http(served, at_least=0.75, slo_ms=SOON_MS)
    assert status == 503
    assert "'small' of 0.7 could" in answer["error"]


@pytest.mark.parametrize(
    ("at_least", "says"),
    [
        (0.9, "at_least is 0.9; it has to be above 0, and 'classify' has answers of up to 0.8"),
        ("high", "the parameter at_least is 'high'; it is a score of the family, such as 0.75"),
        (-1, "the parameter at_least is -1; it is a score of the family"),
    ],
)
def test_a_wrong_score_over_http_and_grpc(served: Served, at_least: Any, says: str) -> None:
    status, answer = over_http(served, at_least=at_least)
    assert status == 400
    assert says in answer["error"]
    with pytest.raises(InferenceServerException) as caught:
        over_grpc(served, at_least=at_least)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert says in str(caught.value.message())


def over_grpc(served: Served, **parameters: object) -> str:
    """Send a request with Triton's client; return the member that answered."""
    tensor = tritonclient.grpc.InferInput("data", X.shape, "FP32")
    tensor.set_data_from_numpy(X)
    address = served.addresses.grpc.rpartition("//")[2]
    with tritonclient.grpc.InferenceServerClient(address) as client:
        answer = client.infer("classify", [tensor], parameters=parameters, client_timeout=PATIENCE_S)
    return str(answer.get_response().parameters["member"].string_param)


def test_the_parameter_over_grpc(served: Served) -> None:
    assert over_grpc(served, at_least=0.75, slo_ms=LATER_MS) == "best"
    assert over_grpc(served, at_least="0.7", slo_ms=SOON_MS) == "small"
    with pytest.raises(InferenceServerException, match=r"'small' of 0\.7 could"):
        over_grpc(served, at_least=0.75, slo_ms=SOON_MS)
