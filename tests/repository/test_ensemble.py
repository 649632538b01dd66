"""Ensembles of ``config.pbtxt``: the graph that each is, and what is wrong with those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.operating import SetGraph
from mainspring.messages.peers import Graph
from mainspring.messages.repository import ModelState
from mainspring.repository.builds import Patience
from mainspring.repository.layout import FoundModel, Layout
from mainspring.repository.model_config import read_config
from mainspring.repository.reading import ConfigFault
from mainspring.repository.reconciler import Reconciler, index_of

ENSEMBLE = """
name: "read-text"
platform: "ensemble"
max_batch_size: 8
input [ { name: "IMAGE:0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000 } }
ensemble_scheduling {
  step [
    {
      model_name: "decode.v2"
      model_version: -1
      input_map { key: "raw" value: "IMAGE:0" }
      output_map { key: "pixels" value: "decoded" }
    },
    {
      model_name: "read"
      model_version: 3
      input_map { key: "x" value: "decoded" }
      output_map { key: "text" value: "TEXT" }
    }
  ]
}
"""
GRAPH = GraphSpec(
    name="read-text",
    inputs=("IMAGE:0",),
    steps=(
        StepSpec(name="decode_v2", model="decode.v2", inputs={"raw": "IMAGE:0"}),
        StepSpec(name="read", model="read:3", inputs={"x": "decode_v2.pixels"}),
    ),
    outputs={"TEXT": "read.text"},
    slo_ms=20.0,
)


def test_an_ensemble_is_a_graph() -> None:
    config = read_config(ENSEMBLE, "read-text")
    assert config.graph == GRAPH
    assert config.warnings == ()


def test_two_steps_of_one_model_have_names_of_their_own() -> None:
    text = ENSEMBLE.replace('"decode.v2"', '"read"').replace("model_version: -1", "model_version: 3")
    graph = read_config(text, "read-text").graph
    assert graph is not None
    assert [step.name for step in graph.steps] == ["read", "read_2"]


@pytest.mark.parametrize(
    ("found", "instead", "says"),
    [
        ('value: "decoded"', 'value: "decodde"', "no step and no input gives tensor 'decoded'; did you mean"),
        ('value: "TEXT"', 'value: "OTHER"', "no step and no input gives tensor 'TEXT'"),
        ('value: "TEXT"', 'value: "decoded"', "tensor 'decoded' has another source already"),
        ('model_name: "read"', "", "a step needs model_name"),
        ('platform: "ensemble"', 'platform: "onnxruntime_onnx"', 'is for platform: "ensemble"'),
        ("ensemble_scheduling {", "parameters { key: 'a' } #", "needs ensemble_scheduling with its steps"),
        ("model_version: 3", "model_version: -2", "model_version is -2; it must be from -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(found: str, instead: str, says: str) -> None:
    text = ENSEMBLE.replace(found, instead, 1)
    if "#" in instead:
        text = text[: text.index("#")]
    with pytest.raises(ConfigFault) as raised:
        read_config(text, "read-text")
    assert says in str(raised.value)
    assert str(raised.value).startswith("line ")


class Told:
    """A reconciler whose controller does as it is asked."""

    def __init__(self, *, explicit: bool = False) -> None:
        self.reconciler = Reconciler(explicit=explicit, patience=Patience(0, 0))
        self.reconciler.cluster.complete()
        self.reconciler.looked = True

    def look(self, found: FoundModel | None) -> list[SetGraph]:
        self.reconciler.found("read-text", found)
        return self.steps()

    def steps(self) -> list[SetGraph]:
        steps = [each for each in self.reconciler.steps(0) if isinstance(each, SetGraph)]
        for each in steps:
            self.reconciler.cluster.heard(Graph(each.name, each.graph))
        return steps


def looked(folder: Path) -> FoundModel:
    (folder / "read-text").mkdir(exist_ok=True)
    (folder / "read-text" / "config.pbtxt").write_text(ENSEMBLE)
    found = Layout(folder, 0).look("read-text", 10**18 * 3, lambda *_: False)
    assert found is not None
    return found


def test_a_folder_of_an_ensemble_is_served_without_a_version_and_taken_away_with_it(tmp_path: Path) -> None:
    told, found = Told(), looked(tmp_path)
    assert told.look(found) == [SetGraph("read-text", GRAPH)]
    assert told.steps() == []
    (entry,) = index_of(told.reconciler)
    assert (entry.name, entry.version, entry.state) == ("read-text", "1", ModelState.READY)
    assert told.look(None) == [SetGraph("read-text")]
    assert told.steps() == []
    assert index_of(told.reconciler) == ()


def test_it_is_loaded_and_unloaded_where_clients_say_so(tmp_path: Path) -> None:
    told = Told(explicit=True)
    assert told.look(looked(tmp_path)) == []
    told.reconciler.load("read-text")
    assert told.steps() == [SetGraph("read-text", GRAPH)]
    told.reconciler.unload("read-text")
    assert told.steps() == [SetGraph("read-text")]


def test_what_the_controller_refused_is_said_and_not_asked_again(tmp_path: Path) -> None:
    told = Told()
    told.reconciler.found("read-text", looked(tmp_path))
    told.reconciler.records["read-text"].refused = GRAPH, "a model is called 'read-text'"
    assert told.steps() == []
    (entry,) = index_of(told.reconciler)
    assert (entry.state, entry.reason) == (ModelState.UNAVAILABLE, "a model is called 'read-text'")
    assert told.reconciler.settled()
