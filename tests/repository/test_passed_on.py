"""What a configuration says for clients to read, though nothing acts upon it."""

from __future__ import annotations

import json

import pytest

from mainspring.repository.model_config import as_json, read_config
from mainspring.repository.reading import ConfigFault

PASSED = """
input { name: "x" data_type: TYPE_FP32 dims: [3, 4] format: FORMAT_NCHW }
output { name: "y" label_filename: "labels.txt" }
instance_group { name: "both" count: 2 kind: KIND_GPU gpus: [0, 1] }
optimization {
  graph { level: -1 } priority: PRIORITY_MAX cuda { graphs: true }
  execution_accelerators {
    gpu_execution_accelerator { name: "tensorrt" parameters { key: "p" value: "FP16" } }
  }
}
metric_tags { key: "team" value: "search" }
"""


def test_what_nothing_acts_upon_is_passed_on() -> None:
    found = json.loads(as_json(read_config(PASSED, "net"), given=True))
    assert found["input"] == [{"name": "x", "format": "FORMAT_NCHW"}]
    assert found["output"] == [{"name": "y", "label_filename": "labels.txt"}]
    assert found["instance_group"] == [{"name": "both", "count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}]
    assert found["optimization"] == {
        "graph": {"level": -1},
        "priority": "PRIORITY_MAX",
        "cuda": {"graphs": True},
        "execution_accelerators": {
            "gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"p": "FP16"}}]
        },
    }
    assert found["metric_tags"] == {"team": "search"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('input { name: "x" format: FORMAT_CHW }', "format FORMAT_CHW is none"),
        ('output { name: "y" label_filename: 3 }', "label_filename must be a text"),
        ("optimization { priority: HIGH }", "priority HIGH is none"),
    ],
)
def test_what_is_passed_on_has_the_types_of_the_protocol(text: str, says: str) -> None:
    with pytest.raises(ConfigFault, match=says):
        read_config(text, "net")
