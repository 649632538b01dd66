"""Graphs by name: a check of one that is to be added changes nothing, and says what adding it would."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.graphs import GraphSpec
from tests.gateway.graphs.test_checking import CASCADE, MODELS


def catalog(**shards: int) -> Catalog:
    """Return what a gateway knows whose controllers serve `MODELS`, in shard 0 where ``shards`` says none."""
    found = Catalog(most_rows=8)
    for name in ("fast", "slow"):
        found.model_up(MODELS[name])
    found.graphs.shards = shards
    return found


def named(name: str) -> GraphSpec:
    return msgspec.structs.replace(msgspec.convert(CASCADE, GraphSpec), name=name)


@pytest.mark.parametrize("of_models", [{"fast": 1, "slow": 1}, {"fast": 1}])
def test_a_check_leaves_requests_for_what_is_served_where_they_are(of_models: dict[str, int]) -> None:
    served = catalog(**of_models, known=2)
    with pytest.raises(GraphError, match="several shards") if len(of_models) == 1 else nullcontext():
        served.graphs.check(named("known"))
    assert served.graphs.shards == {**of_models, "known": 2}


def test_requests_for_a_graph_go_to_the_shard_of_its_models() -> None:
    served = catalog(fast=1, slow=1)
    served.set_graph("cascade", named("cascade"))
    served.resolve("cascade")
    assert served.graphs.shards["cascade"] == 1
    served.graphs.shards.update(fast=0, slow=0)
    served.graphs.models_changed()
    served.resolve("cascade")
    assert "cascade" not in served.graphs.shards


def test_a_check_says_that_a_model_has_the_name() -> None:
    served = catalog()
    served.graphs.check(named("cascade"))
    with pytest.raises(GraphError, match="a model has this name"):
        served.graphs.check(named("fast"))


def test_a_model_or_graph_may_have_a_bound_of_rows_of_its_own() -> None:
    found = Catalog(most_rows=8, most_rows_of={"fast": 20, "cascade": 30, "slow": 1})
    for name in ("fast", "slow"):
        found.model_up(MODELS[name])
    found.set_graph("cascade", named("cascade"))
    found.set_graph("other", named("other"))
    rows = {name: found.resolve(name).most_rows for name in ("fast", "slow", "cascade", "other")}
    assert rows == {"fast": 20, "slow": 8, "cascade": 30, "other": 8}, "a batch is always taken"
