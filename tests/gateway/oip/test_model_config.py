"""A model's configuration: every field has a value, and HTTP and gRPC have the same ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict
from tritonclient.grpc import model_config_pb2

from mainspring.gateway.grpc.messages import message
from mainspring.gateway.oip.model_config import UNSHARED, UNVERIFIED, model_config
from mainspring.repository.model_config import as_json, read_config
from tests.gateway.fakes import make_spec

CONFIG = """
input { name: "data" format: FORMAT_NCHW dims: [4] }
instance_group { count: 2 kind: KIND_GPU gpus: [1] }
dynamic_batching {
  max_queue_delay_microseconds: 500
  default_queue_policy { default_timeout_microseconds: 9000 max_queue_size: 7 allow_timeout_override: true }
}
parameters { key: "a" value { string_value: "b" } }
response_cache { enable: true }
"""


def as_triton(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as a client of gRPC reads it, with every field that has a default there."""
    ours = ParseDict(config, message("inference.ModelConfig")())
    theirs = model_config_pb2.ModelConfig.FromString(ours.SerializeToString())
    found: dict[str, Any] = MessageToDict(
        theirs, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Say whether all that is in one is in the other; a number is also one in quotes."""
    if isinstance(ours, dict):
        return all(same(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs or (type(ours) is int and str(ours) == theirs))


def test_every_field_has_a_value_and_reads_the_same_over_grpc() -> None:
    plain = model_config("net", make_spec("net@1"))
    said = model_config("net", make_spec("net@1"), as_json(read_config(CONFIG, "net"), given=True))
    for config in (plain, said):
        theirs = as_triton(config)
        assert same(config, theirs)
        missing = {*theirs} - {*config}
        assert missing <= {"batch_input", "batch_output", "model_warmup", "model_operations"}, missing
        for kind in ("input", "output"):
            assert {*theirs[kind][0]} <= {*config[kind][0], "reshape"}
        assert {*theirs["dynamic_batching"]} - {"priority_queue_policy"} <= {*config["dynamic_batching"]}


def test_what_the_repository_says_stands_beside_what_it_leaves_open() -> None:
    config = model_config("net", make_spec("net@1"), as_json(read_config(CONFIG, "net"), given=True))
    assert config["platform"] == "onnxruntime_onnx"
    assert config["default_model_filename"] == "model.onnx"
    assert config["input"][0]["format"] == "FORMAT_NCHW"
    assert config["instance_group"] == [
        {"name": "net_0", "count": 2, "kind": "KIND_GPU", "gpus": [1], "passive": False, "host_policy": ""}
    ]
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [1, 2, 4, 8],
        "max_queue_delay_microseconds": 500,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "default_queue_policy": {
            "default_timeout_microseconds": 9000,
            "max_queue_size": 7,
            "allow_timeout_override": True,
        },
    }
    assert config["response_cache"] == {"enable": True}
    assert config["parameters"] == {"a": {"string_value": "b"}}


def test_a_model_whose_rows_run_alone_says_why_and_prefers_no_batch() -> None:
    spec = msgspec.structs.replace(make_spec("net"), unshared="node 'q'", batch_sizes=(1,))
    config = model_config("net", spec, json.dumps({"max_batch_size": 8, "dynamic_batching": {}}))
    assert config["max_batch_size"] == 1
    assert config["parameters"] == {UNSHARED: {"string_value": "node 'q'"}}
    assert "preferred_batch_size" not in config["dynamic_batching"]


def test_a_model_that_was_compared_with_nothing_says_so() -> None:
    spec = msgspec.structs.replace(make_spec("net"), verified=False)
    assert model_config("net", spec)["parameters"] == {UNVERIFIED: {"string_value": "true"}}


def test_a_model_without_rows_is_not_batched() -> None:
    spec = msgspec.structs.replace(make_spec("net"), whole=True, batch_sizes=(1,))
    config = model_config("net", spec)
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
