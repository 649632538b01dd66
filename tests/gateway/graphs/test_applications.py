"""Applications by name: members come and go, what was learnt stays; what can't be is said in one line."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.applications import ApplicationSpec
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.learning import Observe
from mainspring.messages.model import TensorSpec
from mainspring.selection.application import Application
from mainspring.selection.ledger import Feedback
from tests.gateway.graphs.test_learnt import SCORES, model

SPEC = ApplicationSpec(
    name="digits", members=("svm", "cnn"), output="scores", options={"eta": 1.0, "floor": 0.0}, least=2
)


def graph(**changes: object) -> GraphSpec:
    application = msgspec.structs.replace(SPEC, **changes)
    return GraphSpec(name=application.name, application=application)


def catalog(*models: str) -> Catalog:
    found = Catalog(most_rows=4)
    for each in models:
        found.model_up(model(each, SCORES))
    return found


def served(found: Catalog) -> Application:
    made = found.resolve("digits").graph.application
    assert made is not None
    return made  # type: ignore[no-any-return]


def answer(application: Application, **classes: int) -> int:
    """Have an application answer with what its members predict; return the answer's id."""
    chosen = application.select(0, {}, np.random.default_rng(0))
    outputs = {name: np.eye(3)[[number]] for name, number in classes.items()}
    return application.combine(0, {}, chosen, outputs).query_id


def test_members_come_and_go_while_those_that_stay_keep_their_weights() -> None:
    found = catalog("svm", "cnn")
    found.set_graph("digits", graph())
    asked = answer(served(found), svm=0, cnn=1)
    assert found.graphs.applications.observe(0, Observe(0, "digits", asked, (0,))) == [Feedback.JOINED]
    found.model_up(model("tree", SCORES))
    found.set_graph("digits", graph(members=("svm", "cnn", "tree")))
    assert served(found).contexts.shared.keys() == {"svm", "cnn", "tree"}
    assert served(found).contexts.shared["cnn"] == (-1,)
    found.model_down("svm")
    assert [*served(found).members] == ["cnn", "tree"], "a member that was removed is left out"
    assert served(found).contexts.shared["cnn"] == (-1,)
    found.model_down("tree")
    assert (served(found).spec.least, [*served(found).members]) == (1, ["cnn"])
    found.model_down("cnn")
    with pytest.raises(
        BadRequest, match="its last member was removed: add one of 'svm' and 'cnn'"
    ) as refused:
        found.resolve("digits")
    assert refused.value.reason is Reason.MODEL_REMOVED
    found.model_up(model("cnn", SCORES))
    assert served(found).contexts.shared["cnn"] == (-1,), "it is the version that is new, not the member"


def test_a_member_that_is_yet_to_come_is_waited_for() -> None:
    found = catalog("svm")
    found.awaits = lambda name: "it is being compiled" if name == "cnn" else ""
    found.set_graph("digits", graph())
    assert found.graphs.fault("digits").endswith(
        "member 'cnn': model 'cnn' is not ready: it is being compiled"
    )


def test_a_removed_application_begins_anew_with_other_ids() -> None:
    found = catalog("svm", "cnn")
    found.set_graph("digits", graph())
    first = answer(served(found), svm=0, cnn=1)
    found.set_graph("digits", None)
    found.set_graph("digits", graph())
    assert answer(served(found), svm=0, cnn=1) == first + 1
    with pytest.raises(BadRequest, match="'svm' is not an application: it learns nothing"):
        found.graphs.applications.observe(0, Observe(0, "svm", first, (0,)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"members": ("svm", "cn")}, "member 'cn': model 'cn' is not served; did you mean 'cnn'"),
        ({"name": "svm"}, "a model has this name: choose another one"),
        ({"name": "steps"}, "a graph has this name: choose another one, or remove it first"),
        ({"options": {"etta": 1.0}}, "policy 'exp4' has no option 'etta': it has eta, floor; did you mean"),
        ({"confidence": 0.5}, "confidence without default: below a confidence, the answer is the default"),
        ({"members": ("svm", "wide")}, r"svm.scores is float32\[3\] and wide.scores is float32\[4\]"),
        ({"members": ("svm", "long")}, "input 'data'"),
    ],
)  # fmt: skip
def test_what_can_not_be_added_is_said_in_one_line(changes: dict[str, object], said: str) -> None:
    found = catalog("svm", "cnn")
    found.model_up(model("wide", TensorSpec("scores", "float32", (4,))))
    found.model_up(model("long", SCORES, TensorSpec("data", "float32", (5,))))
    found.set_graph("steps", GraphSpec(name="steps"))
    with pytest.raises(GraphError, match=said) as refused:
        found.graphs.check(graph(**changes))
    assert "\n" not in str(refused.value)


def test_a_graph_does_not_take_an_applications_name() -> None:
    found = catalog("svm", "cnn")
    found.set_graph("digits", graph())
    family = GraphSpec(name="digits", members=("svm", "cnn"), score=(0.5, 0.6))
    with pytest.raises(GraphError, match="an application has this name: choose another one, or remove it"):
        found.graphs.check(family)
