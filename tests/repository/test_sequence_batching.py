"""``sequence_batching`` of a config.pbtxt: what it says, what is refused, and initial states in files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.messages.sequencing import Control, Sequencing, State
from mainspring.repository.layout import Layout
from mainspring.repository.model_config import as_json, read_config
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import artifact_name, recipe_of
from mainspring.repository.requests import read_json
from tests.repository.nets import configure, put
from tests.repository.test_layout import S, look

CONFIG = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [6] } ]
output [ { name: "y" dims: [2] }, { name: "c_out" dims: [5] } ]
sequence_batching {
  max_sequence_idle_microseconds: 10000000
  oldest { max_candidate_sequences: 32 }
  control_input [
    { name: "first" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "last" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ -1, 7 ] } ] },
    { name: "ready" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "stream" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
  state [
    { input_name: "h" output_name: "h_out" data_type: TYPE_FP32 dims: [ 5 ] },
    {
      input_name: "c" output_name: "c_out" data_type: TYPE_FP32 dims: [ -1 ]
      initial_state: { data_type: TYPE_FP32 dims: [ 5 ] data_file: "c0" name: "c0" }
    }
  ]
}
"""


def test_what_sequences_are() -> None:
    config = read_config(CONFIG, "net")
    assert config.sequencing == Sequencing(
        (State("h", "h_out"), State("c", "c_out", (5,), shown=True)),
        (
            Control("first", "start"),
            Control("last", "end", -1, 7),
            Control("ready", "ready"),
            Control("stream", "id"),
        ),
        10 * S,
    )
    assert config.initial_files == {"c": "c0"}
    assert [each.name for each in config.kept_inputs] == ["h", "c", "first", "last", "ready", "stream"]
    assert [(each.name, each.dims) for each in config.kept_outputs] == [("h_out", (5,))]
    assert not config.warnings


def test_clients_read_what_the_file_says_and_may_send_it_back() -> None:
    config = read_config(CONFIG, "net")
    said = as_json(config, given=True)
    batching = msgspec.json.decode(said)["sequence_batching"]
    assert batching["oldest"] == {"max_candidate_sequences": 32}
    assert batching["state"][0]["dims"] == [5]
    assert batching["control_input"][1]["control"][0]["int32_false_true"] == [-1, 7]
    again = read_json(said, "net")
    assert (again.sequencing, again.initial_files) == (
        Sequencing(
            (State("h", "h_out"), State("c", "c_out", (5,))),
            config.sequencing.controls if config.sequencing else (),
            10 * S,
        ),
        config.initial_files,
    )


@pytest.mark.parametrize(
    "strategy", ["", "direct {}", "direct { minimum_slot_utilization: 0.5 }", "oldest {}"]
)
def test_both_strategies_mean_the_same(strategy: str) -> None:
    state = 'state { input_name: "h" output_name: "h_out" }'
    config = read_config(f"sequence_batching {{ {strategy} {state} }}", "net")
    assert config.sequencing == Sequencing((State("h", "h_out"),))
    assert len(config.warnings) == ("slot" in strategy)


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ('state { output_name: "y" }', "state needs input_name"),
        ('state { input_name: "h" }', "state needs output_name"),
        ('state { input_name: "h" output_name: "y" data_type: FP32 }', "data_type FP32 is none"),
        (
            'state { input_name: "h" output_name: "y" initial_state { data_file: "../x" } }',
            "data_file names one in the model's folder initial_state",
        ),
        (
            'state { input_name: "h" output_name: "y" initial_state {} initial_state {} }',
            "has two initial states; keep one",
        ),
        (
            'state { input_name: "h" output_name: "y" data_type: TYPE_FP32 initial_state '
            "{ data_type: TYPE_INT32 } }",
            "is TYPE_INT32 and the state TYPE_FP32",
        ),
        ('control_input { name: "a" }', "has 0 controls; it has exactly one"),
        ('control_input { name: "a" control { kind: CONTROL_X } }', "kind CONTROL_X is none"),
        ('control_input { name: "a" control {} }', "needs two values, false and true"),
        ('control_input { name: "a" control { fp32_false_true: 1 } }', "needs two values, false and true"),
        ('control_input { name: "a" control { fp32_false_true: "x" } }', "must be a number, not 'x'"),
        ("direct {} oldest {}", "direct and oldest can't both be"),
        ("iterative_sequence: true", "iterative_sequence can't be honoured: each request has exactly one"),
        ("generative_sequence: true", "generative_sequence can't be honoured"),
        ("max_sequence_idle_microseconds: -1", "max_sequence_idle_microseconds is -1"),
    ],
)
def test_what_makes_no_sense_says_where_and_why(inner: str, says: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        read_config(f"sequence_batching {{ {inner} }}", "net")
    assert says in str(caught.value)
    assert str(caught.value).startswith("line 1: ")


def test_sequences_are_not_batched_twice() -> None:
    with pytest.raises(ConfigFault, match="sequence_batching and dynamic_batching can't both be"):
        read_config("dynamic_batching {} sequence_batching {}", "net")


def test_an_initial_state_is_its_files_content_and_another_is_another_artifact(
    tmp_path: Path,
) -> None:
    put(tmp_path, "net", 1, b"a")
    configure(tmp_path, "net", CONFIG)
    layout = Layout(tmp_path, settle_ns=S)
    assert "data_file 'c0' is not in the model's folder initial_state" in look(layout, "net").fault
    folder = tmp_path / "net" / "initial_state"
    folder.mkdir()
    names = []
    for content in (b"one", b"two"):
        (folder / "new").write_bytes(content)
        (folder / "new").rename(folder / "c0")
        found = look(layout, "net")
        assert found.config.sequencing is not None
        assert [each.initial for each in found.config.sequencing.states] == [b"", content]
        names.append(artifact_name("net", 1, found.digests[1], recipe_of(found.config)))
    assert names[0] != names[1]
    (folder / "new").write_bytes(b"")
    (folder / "new").rename(folder / "c0")
    assert "data_file 'c0' has 0 bytes" in look(layout, "net").fault


def test_states_have_rows_in_front_where_configurations_have_them() -> None:
    text = """max_batch_size: 0
        input { name: "x" dims: [-1, 6] }
        sequence_batching { state {
            input_name: "h" output_name: "h_out" dims: [-1, 5] initial_state { dims: [1, 5] zero_data: true }
        } }"""
    recipe = recipe_of(read_config(text, "net"))
    assert recipe.sequencing == Sequencing((State("h", "h_out", (5,)),))
    assert recipe.shapes == {"x": (-1, 6), "h": (-1, 5)}
