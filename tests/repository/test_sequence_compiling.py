"""Models with ``sequence_batching``, from their folder to what is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import (
    ModelSpec,
)
from mainspring.messages.sequencing import Sequencing, State
from mainspring.repository.compile_child import Job, Outcome, run
from mainspring.repository.model_config import read_config
from mainspring.repository.named_files import digest_of, stamp_of
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import artifact_name, recipe_of, served_spec
from tests.gateway.recurrent import recurrent
from tests.repository.nets import put

STATE = 'input_name: "h" output_name: "h_out" data_type: TYPE_FP32 dims: [5]'


def compiled(root: Path, text: str) -> Outcome:
    file = put(root / "repository", "net", 1, recurrent())
    config = read_config(f"max_batch_size: 2 {text}", "net")
    digest, recipe = digest_of(file.parent, stamp_of(file.parent)), recipe_of(config)
    name = artifact_name("net", 1, digest, recipe)
    return run(Store(root / "store"), Job(name, str(file.parent), file.name, digest, recipe))


def served(outcome: Outcome, text: str) -> ModelSpec:
    assert outcome.spec is not None, outcome.fault
    return served_spec(outcome.spec, "net", 1, read_config(f"max_batch_size: 2 {text}", "net"))


def test_a_models_sequences_are_served(tmp_path: Path) -> None:
    text = f"sequence_batching {{ state {{ {STATE} }} }}"
    spec = served(compiled(tmp_path, text), text)
    assert spec.sequencing == Sequencing((State("h", "h_out"),))
    assert (spec.unshared, spec.whole, spec.max_rows) == ("", False, 2)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ('input_name: "hh" output_name: "h_out"', "there is no input 'hh' for its sequences"),
        ('input_name: "h" output_name: "out"', "there is no output 'out' to take a state from"),
        ('input_name: "h" output_name: "y"', "is ['2'] where it is taken and ['5'] where it is fed"),
        (
            'input_name: "h" output_name: "h_out" initial_state { dims: [4] }',
            "the initial state of input 'h' has dims [4]; the input is ['5']",
        ),
    ],
)
def test_what_the_model_is_not_is_said(tmp_path: Path, state: str, says: str) -> None:
    outcome = compiled(tmp_path, f"sequence_batching {{ state {{ {state} }} }}")
    assert outcome.spec is None
    assert says in outcome.fault


def test_a_states_type_and_dims_are_the_models(tmp_path: Path) -> None:
    plain = 'sequence_batching { state { input_name: "h" output_name: "h_out" } }'
    outcome = compiled(tmp_path, plain)
    for wrong, says in (
        ("TYPE_FP16 dims: [5]", "tensor 'h' is TYPE_FP16 in config.pbtxt and TYPE_FP32 in the model"),
        ("TYPE_FP32 dims: [6]", r"tensor 'h' has dims \[6\] in config.pbtxt"),
    ):
        state = f'input_name: "h" output_name: "h_out" data_type: {wrong}'
        with pytest.raises(ConfigFault, match=says):
            served(outcome, f"sequence_batching {{ state {{ {state} }} }}")
