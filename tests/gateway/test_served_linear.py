"""Personal linear models that are served: predictions, the best items, feedback, what can't be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mainspring
from mainspring import AsyncClient, Client
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.gateway.test_served_applications import Served, asked

TABLE = np.random.default_rng(0).normal(size=(300, 4))
WIDE = np.random.default_rng(1).normal(size=(5_000, 200))


def text(name: str, table: Path, **options: float | str) -> str:
    lines = [f"{key} = {value}" for key, value in options.items()]
    return "\n".join(
        [f'name = "{name}"', 'policy = "linear"', "context = true", "[options]", f'table = "{table}"', *lines]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tables")
    np.save(found / "items.npy", TABLE)
    np.save(found / "wide.npy", WIDE)
    np.save(found / "nan.npy", np.full((2, 2), np.nan))
    return found


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with (
        real_controller([emulated("one", 1_000_000)]) as controller,
        real_worker("worker", controller),
        serving(controller, http_address="http://127.0.0.1:0") as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), 20)
        client.add_graph(text("songs", folder / "items.npy", ridge=0.5, prior='"zero"'))
        client.add_graph(text("wide", folder / "wide.npy", alpha=0.5))
        yield Served(addresses, client)


def weights(items: list[int], values: list[float]) -> np.ndarray:
    """Return what ridge regression about 0 makes of observations."""
    features = TABLE[items]
    return np.linalg.solve(features.T @ features + 0.5 * np.eye(4), features.T @ np.array(values))


def test_it_predicts_from_what_came_true_of_its_answers(served: Served) -> None:
    client, items = served.client, [3, 8, 8]
    found = client.infer("songs", {"item": np.array(items)}, slo_ms=5_000, context="ann")
    learnt = found.timing.learnt
    assert learnt is not None
    assert found["prediction"].tolist() == [0.0] * 3
    assert np.allclose(found["uncertainty"], np.linalg.norm(TABLE[items], axis=1) / np.sqrt(0.5))
    values = [4.0, 1.0, 2.0]
    assert client.observe("songs", learnt.query_id, values).joined == 3
    assert client.observe("songs", learnt.query_id, values).duplicate == 3
    found = client.infer("songs", {"item": np.arange(300)}, slo_ms=5_000, context="ann")
    assert np.allclose(found["prediction"], TABLE @ weights(items, values), atol=1e-5)


def test_the_best_items_are_those_of_brute_force_and_can_be_observed(served: Served) -> None:
    client = served.client
    assert client.observe("songs", None, [2.0, -1.0], inputs={"item": [5, 6]}, context="bob").joined == 2
    scores = TABLE @ weights([5, 6], [2.0, -1.0])
    found = client.top_k("songs", None, 7, context="bob")
    assert list(found.items) == np.argsort(-scores)[:7].tolist()
    assert np.allclose(found.scores, np.sort(scores)[::-1][:7])
    some = client.top_k("songs", [9, 4, 250], 2, context="bob")
    assert list(some.items) == sorted([9, 4, 250], key=lambda each: -scores[each])[:2]
    assert client.observe("songs", some.query_id, [5.0], rows=[1]).joined == 1
    after = TABLE @ weights([5, 6, some.items[1]], [2.0, -1.0, 5.0])
    assert list(client.top_k("songs", None, 3, context="bob").items) == np.argsort(-after)[:3].tolist()


def test_what_takes_long_is_answered_in_the_order_in_which_it_came(served: Served) -> None:
    async def ask() -> list[float]:
        async with AsyncClient(served.addresses.zeromq) as client:
            found = []
            for value in (1.0, 2.0, 3.0):
                await client.observe("wide", None, [value] * 40, inputs={"item": [7] * 40}, context="eve")
                found.append((await client.top_k("wide", [7], 1, context="eve")).scores[0])
            return found

    first, second, third = asyncio.run(ask())
    assert first < second < third
    many = [served.client.top_k("wide", None, 3, context=f"user-{number}") for number in range(3)]
    assert len({each.query_id for each in many}) == 3


def test_over_http_the_same(served: Served) -> None:
    served.client.observe("songs", None, [3.0], inputs={"item": [5]}, context="ida")
    status, found = asked(served.addresses, "songs/topk", {"k": 2, "context": "ida"})
    scores = TABLE @ weights([5], [3.0])
    assert (status, found["items"]) == (200, np.argsort(-scores)[:2].tolist())
    assert (found["random"], found["version"]) == (-1, 1)
    status, found = asked(served.addresses, "songs/topk", {"k": 0, "context": "ida"})
    assert (status, found["error"]) == (400, "bad_input: k is 0; it has to be at least 1")
    assert asked(served.addresses, "nothing/topk", {"k": 1})[0] == 404


def test_what_can_not_be_is_said_in_one_line(served: Served, folder: Path) -> None:
    client = served.client
    for call, said in (
        (lambda: client.top_k("songs", [300], 1), "there is no item 300: they are 0 to 299"),
        (lambda: client.top_k("songs", [0] * 100_001, 1), "the best of 100001 items is asked for"),
        (lambda: client.top_k("one", None, 1), "'one' is not an application"),
        (lambda: client.infer("songs", {"item": [-1]}, context="a", slo_ms=999), "there is no item -1"),
        (lambda: client.observe("songs", None, [float("nan")], inputs={"item": [1]}, context="a"), "number"),
        (lambda: client.add_graph(text("bad", folder / "nan.npy")), "item 0 has a feature that is NaN"),
        (lambda: client.add_graph(text("bad", folder / "no.npy")), "can't be read as a .npy file"),
        (lambda: client.add_graph(text("bad", folder / "items.npy", ridge=-1)), "option ridge is -1"),
        (lambda: client.add_graph('name = "bad"\npolicy = "linear"\ncontext = true'), "the option table"),
    ):  # fmt: skip
        with pytest.raises(mainspring.InvalidRequest, match=said):
            call()
    learnt = client.infer("songs", {"item": [1]}, slo_ms=5_000).timing.learnt
    assert learnt is not None
    with pytest.raises(mainspring.InvalidRequest, match="the request had no context"):
        client.observe("songs", learnt.query_id, [1.0])


def test_a_member_may_compute_the_features(served: Served) -> None:
    client, data = served.client, np.ones((2, 4), np.float32)
    member = 'name = "computed"\nmembers = ["one"]\noutput = "twice"\npolicy = "linear"\ncontext = true'
    client.add_graph(member)
    features = client.infer("one", {"data": data}, slo_ms=5_000)["twice"]
    found = client.infer("computed", {"data": data}, slo_ms=5_000, context="ann")
    learnt = found.timing.learnt
    assert learnt is not None
    assert client.observe("computed", learnt.query_id, [1.0, 1.0]).joined == 2
    after = client.infer("computed", {"data": data}, slo_ms=5_000, context="ann")["prediction"]
    square = float(features[0] @ features[0])
    assert np.allclose(after, 2 * square / (1 + 2 * square))
    with pytest.raises(mainspring.InvalidRequest, match="it has no table of items"):
        client.top_k("computed", None, 1, context="ann")
    client.remove_graph("computed")
