"""The shares of a graph's steps are those that its newest query told: `Cluster.graph_shares`."""

from __future__ import annotations

from mainspring.cluster.apply import apply
from mainspring.cluster.state import Cluster
from mainspring.messages.events import OperatorAsked, QueryArrived
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.operating import SetGraph
from mainspring.messages.queries import QueryStep

STEPS = (
    StepSpec(name="find", model="a", inputs={"x": "x"}),
    StepSpec(name="read", model="b", inputs={"x": "x"}),
)
GRAPH = GraphSpec(name="g", inputs=("x",), steps=STEPS, outputs={"y": "read.out"})


def told(cluster: Cluster, query_id: int, **shares: float) -> dict[str, float]:
    """Return what is kept once a query has told these shares."""
    steps = tuple(QueryStep("a", 1, name=name, share=share) for name, share in shares.items())
    apply(cluster, query_id, QueryArrived(query_id, None, steps, graph="g"))
    return cluster.graph_shares.get("g", {})


def test_shares_follow_the_newest_query_also_back_to_one() -> None:
    cluster = Cluster()
    apply(cluster, 0, OperatorAsked("ann", SetGraph("g", GRAPH)))
    assert told(cluster, 1, find=1.0, read=1.0) == {}
    assert told(cluster, 2, find=1.0, read=0.5) == {"read": 0.5}
    assert told(cluster, 3, find=2.0, read=0.5) == {"find": 2.0, "read": 0.5}
    assert told(cluster, 4, find=1.0) == {}, "a step that is gone has no share"
    assert told(cluster, 5, find=1.0, read=0.5) == {"read": 0.5}
    assert told(cluster, 6, find=1.0, read=1.0) == {}


def test_shares_that_stay_are_not_built_again() -> None:
    cluster = Cluster()
    apply(cluster, 0, OperatorAsked("ann", SetGraph("g", GRAPH)))
    first = told(cluster, 1, find=1.0, read=0.5)
    assert told(cluster, 2, find=1.0, read=0.5) is first
