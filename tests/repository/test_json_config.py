"""A configuration as JSON says what the same one says as ``config.pbtxt``."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mainspring.gateway.oip.model_config import model_config
from mainspring.repository.model_config import as_json, read_config
from mainspring.repository.reading import ConfigFault
from mainspring.repository.requests import read_json
from tests.gateway.fakes import make_spec

TEXT = """
name: "net" platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "data" data_type: TYPE_FP32 dims: [4] format: FORMAT_NCHW }
output { name: "twice" dims: [2, 2] reshape { shape: [4] } label_filename: "labels.txt" }
version_policy { specific { versions: [1, 3] } }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching {
  preferred_batch_size: [4]
  priority_levels: 3 default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 25000 timeout_action: REJECT }
}
parameters { key: "maxBatch" value { string_value: "1" } }
response_cache { enable: true }
default_model_filename: "weights.onnx"
"""
JSON: dict[str, Any] = {
    "name": "net",
    "platform": "onnxruntime_onnx",
    "maxBatchSize": 8,
    "input": [{"name": "data", "dataType": "TYPE_FP32", "dims": ["4"], "format": "FORMAT_NCHW"}],
    "output": [{"name": "twice", "dims": [2, 2], "reshape": {"shape": [4]}, "label_filename": "labels.txt"}],
    "version_policy": {"specific": {"versions": ["1", 3]}},
    "instance_group": [{"count": 1, "kind": "KIND_CPU", "name": None}],
    "dynamic_batching": {
        "preferred_batch_size": [4],
        "priorityLevels": "3",
        "default_priority_level": 2,
        "default_queue_policy": {"default_timeout_microseconds": "25000", "timeout_action": "REJECT"},
    },
    "parameters": {"maxBatch": {"string_value": "1"}},
    "response_cache": {"enable": True},
    "default_model_filename": "weights.onnx",
}


def test_both_forms_say_the_same() -> None:
    found, expected = read_json(json.dumps(JSON), "net"), read_config(TEXT, "net")
    assert found.warnings == tuple(each.replace("line 3", "line 1") for each in expected.warnings)
    assert msgspec.structs.replace(found, warnings=expected.warnings) == expected


def test_what_a_server_said_can_be_changed_and_sent_back() -> None:
    config = read_config(TEXT, "net")
    for said in (as_json(config, given=True), ""):
        shown = model_config("net", make_spec("net@1"), said)
        again = read_json(
            json.dumps(
                {
                    **shown,
                    "dynamic_batching": {**shown["dynamic_batching"], "preferred_batch_size": [4]},
                    "max_batch_size": 4,
                }
            ),
            "net",
        )
        assert again.max_batch_size == 4
        assert again.file_name == (config.file_name if said else "model.onnx")
        assert again.slo_ns == (config.slo_ns if said else None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "not an object"),
        ("[" * 10_000, "it is not JSON"),
        ('{"input": [[1]]}', "lists within lists"),
        ('{"max_batch_size": "many"}', "max_batch_size must be a whole number"),
        ('{"max_batch_size": -1}', "must be from 0"),
        ('{"name": "other"}', "they must be equal"),
        ('{"backend": "pytorch"}', "Mainspring serves ONNX models"),
        ('{"ensemble_scheduling": {"step": [{}]}}', 'ensemble_scheduling is for platform: "ensemble"'),
        ('{"input": [{"name": "x", "data_type": "FP32"}]}', "data_type FP32 is none"),
        (json.dumps({"input": [{"name": "x", "dims": [1] * 30_000}]}), "make no sense"),
        ('{"a":' * 200 + "1" + "}" * 200, "make no sense"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigFault, match=said):
        read_json(text, "net")


def test_numbers_may_be_in_quotes_or_written_as_whole_fractions() -> None:
    said = {
        "max_batch_size": "16",
        "input": [{"name": "7", "dims": ["4", 2.0]}],
        "version_policy": {"latest": {"num_versions": "2"}},
        "instance_group": [{"count": "2"}],
        "dynamic_batching": {
            "preferred_batch_size": ["8"],
            "priority_levels": "3",
            "default_priority_level": 2,
        },
    }
    config = read_json(json.dumps(said), "net")
    assert (config.max_batch_size, config.preferred_batch_sizes, config.priority_levels) == (16, (8,), 3)
    assert [(each.name, each.dims) for each in config.inputs] == [("7", (4, 2))]
    assert config.version_policy.latest == 2


def test_fields_that_nobody_knows_are_warned_of() -> None:
    (warning,) = read_json('{"max_batch_sise": 8}', "net").warnings
    assert "did you mean 'max_batch_size'?" in warning
    assert msgspec.structs.replace(read_json("{}", "net"), warnings=()) == read_config("", "net")
