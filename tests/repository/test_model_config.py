"""What becomes of each field of a ``config.pbtxt``."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest

from mainspring.messages.model import ModelSpec, OpenDim, Profile, Symbol, TensorSpec, Term
from mainspring.repository.model_config import (
    MOST_ROWS,
    ModelConfig,
    TensorConfig,
    VersionPolicy,
    as_json,
    read_config,
)
from mainspring.repository.reading import MOST_WARNINGS, ConfigFault
from mainspring.repository.recipe import (
    DEFAULT_SIZES,
    Recipe,
    artifact_name,
    is_artifact_name,
    model_and_version,
    recipe_of,
    served_spec,
)
from mainspring.repository.requests import read_json

WHOLE = """
name: "net"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 2, -1 ] },
  { name: "n" data_type: TYPE_INT64 dims: 1 reshape { shape: [ ] } }
]
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
version_policy { specific { versions: 3 versions: 1 } }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  default_queue_policy { default_timeout_microseconds: 25000 allow_timeout_override: true }
  priority_levels: 3 default_priority_level: 2
}
parameters { key: "mode" value: { string_value: "fast" } }
parameters [ { key: "other", value { string_value: "1" } } ]
response_cache { enable: true }
default_model_filename: "weights.onnx"
optimization { graph { level: 1 } }
colour: "red"
instance_groups {}
model_transaction_policy { decoupled: false }
"""


def test_what_is_honoured_and_what_is_warned_of() -> None:
    config = read_config(WHOLE, "net")
    assert msgspec.structs.replace(config, warnings=(), passed={}) == ModelConfig(
        max_batch_size=8,
        inputs=(
            TensorConfig(name="x", data_type="TYPE_FP32", dims=(2, -1)),
            TensorConfig(name="n", data_type="TYPE_INT64", dims=(1,), reshape=()),
        ),
        outputs=(TensorConfig(name="y", data_type="TYPE_FP32", dims=(3,), label_file="labels.txt"),),
        version_policy=VersionPolicy(latest=None, specific=(1, 3)),
        preferred_batch_sizes=(4, 8),
        slo_ns=25_000_000,
        priority_levels=3,
        default_priority=2,
        cache=True,
        parameters={"mode": "fast", "other": "1"},
        file_name="weights.onnx",
    )
    said = [warning.partition(" is ignored")[0] for warning in config.warnings]
    assert said == [
        "line 12: gpus of instance_group",
        "line 15: max_queue_delay_microseconds of dynamic_batching",
        "line 16: allow_timeout_override of default_queue_policy",
        "line 23: optimization",
        "line 24: colour",
        "line 25: instance_groups",
        "line 12: count of instance_group",
        "line 12: kind of instance_group",
    ]
    assert config.warnings[5].endswith("did you mean 'instance_group'?")


def test_an_empty_file_is_the_defaults() -> None:
    assert read_config("# nothing\n", "net") == ModelConfig()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name: "other"', "line 1: the name is 'other' and the folder's is 'net'"),
        ('platform: "tensorrt_plan"', "platform is 'tensorrt_plan'; Mainspring serves ONNX models"),
        ('backend: "pytorch"', "ONNX models and Python code: 'onnxruntime' or 'python'"),
        ("max_batch_size: -1", "max_batch_size is -1; it must be from 0 to"),
        ("max_batch_size: 1.5", "max_batch_size must be a whole number, not 1.5"),
        ("max_batch_size: 1\nmax_batch_size: 2", "line 2: max_batch_size stands here again"),
        ("input { data_type: TYPE_FP32 }", "an input needs a name"),
        ('input { name: "x" }\ninput { name: "x" }', "line 2: there are two inputs of the name 'x'"),
        ('input { name: "x" data_type: FP32 }', "data_type FP32 is none"),
        ('input { name: "x" data_type: "TYPE_FP32" }', "data_type must be a name without quotes"),
        ('input { name: "x" dims: [-2] }', "dims is -2; it must be from -1 to"),
        ('input: "x"', "input must be a message in braces, not 'x'"),
        ("version_policy {}", "one of latest, all and specific, not none"),
        ("version_policy { all {} latest {} }", "not latest and all"),
        ("version_policy { specific {} }", "specific names no versions"),
        ("version_policy { latest { num_versions: 0 } }", "num_versions is 0"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }", "is 8, above max_batch_size"),
        (
            "dynamic_batching { priority_levels: 3 }",
            "default_priority_level is 0; with priority_levels: 3",
        ),
        ("dynamic_batching { priority_levels: 3 default_priority_level: 4 }", "1, the highest, to 3"),
        ("dynamic_batching { priority_levels: -1 }", "priority_levels is -1; it must be from 0 to 1000"),
        ("ensemble_scheduling { step {} }", 'line 1: ensemble_scheduling is for platform: "ensemble"'),
        ("sequence_batching { iterative_sequence: true }", "iterative_sequence can't be honoured"),
        ("model_transaction_policy { decoupled: true }", "decoupled can't be honoured"),
        ('input { name: "x" is_shape_tensor: true }', "is_shape_tensor can't be honoured"),
        ("response_cache { enable: maybe }", "enable must be true or false"),
        ('output { name: "y" label_filename: "../labels.txt" }', "names one in the model's folder"),
        ('default_model_filename: "../x.onnx"', "is not the name of a file"),
        ("instance_group { kind: KIND_TPU }", "kind KIND_TPU is none"),
        ("parameters { key: 3 }", "key must be a text in quotes"),
        ("name: ", "line 1: a value is expected, not the end"),
        ("response_cache {} response_cache {}", "response_cache stands here again"),
    ],
)
def test_what_can_not_be_served_says_where_and_why(text: str, says: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        read_config(text, "net")
    assert says in str(caught.value)


def test_a_delayed_time_out_is_warned_of() -> None:
    text = (
        "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 } }"
    )
    (warning,) = read_config(text, "net").warnings
    assert "timeout_action of default_queue_policy is ignored" in warning


def test_a_shape_may_keep_open_dimensions() -> None:
    text = 'max_batch_size: 8 input { name: "x" dims: [ -1 ] reshape { shape: [ -1, 1 ] } }'
    config = read_config(text, "net")
    assert (config.inputs[0].dims, config.inputs[0].reshape) == ((-1,), (-1, 1))
    assert json.loads(as_json(config, given=True))["input"] == [{"name": "x", "reshape": {"shape": [-1, 1]}}]


def test_the_configuration_as_json_is_what_the_file_says() -> None:
    assert json.loads(as_json(read_config(WHOLE, "net"), given=True)) == {
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": [1, 3]}},
        "dynamic_batching": {
            "priority_levels": 3,
            "default_priority_level": 2,
            "preferred_batch_size": [4, 8],
            "max_queue_delay_microseconds": 100,
            "default_queue_policy": {
                "default_timeout_microseconds": 25_000,
                "allow_timeout_override": True,
            },
        },
        "max_batch_size": 8,
        "response_cache": {"enable": True},
        "parameters": {"mode": {"string_value": "fast"}, "other": {"string_value": "1"}},
        "default_model_filename": "weights.onnx",
        "input": [{"name": "n", "reshape": {"shape": []}}],
        "output": [{"name": "y", "label_filename": "labels.txt"}],
        "instance_group": [{"count": 2, "gpus": [0], "kind": "KIND_GPU"}],
        "optimization": {"graph": {"level": 1}},
    }
    assert json.loads(as_json(ModelConfig(), given=False)) == {
        "version_policy": {"latest": {"num_versions": 1}},
        "default_model_filename": "model.onnx",
    }


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(), [12]),
        (VersionPolicy(latest=2), [3, 12]),
        (VersionPolicy(latest=9), [1, 2, 3, 12]),
        (VersionPolicy(latest=None), [1, 2, 3, 12]),
        (VersionPolicy(latest=None, specific=(2, 3, 7)), [2, 3]),
    ],
)
def test_which_versions_are_served(policy: VersionPolicy, chosen: list[int]) -> None:
    assert policy.choose([12, 1, 3, 2]) == chosen
    assert policy.choose([]) == []


X = TensorConfig(name="x", dims=(3, 4))


@pytest.mark.parametrize(
    ("config", "recipe"),
    [
        (ModelConfig(), Recipe(None, {}, None)),
        (ModelConfig(max_batch_size=6), Recipe((1, 2, 4, 6))),
        (ModelConfig(max_batch_size=1), Recipe((1,))),
        (ModelConfig(max_batch_size=16), Recipe(DEFAULT_SIZES)),
        (ModelConfig(max_batch_size=8, preferred_batch_sizes=(4,)), Recipe((1, 4, 8))),
        (ModelConfig(preferred_batch_sizes=(3,)), Recipe((1, 2, 3, 4, 8, 16), {}, None)),
        (ModelConfig(inputs=(X,)), Recipe((1,), {"x": (3, 4)}, True)),
        (
            ModelConfig(inputs=(msgspec.structs.replace(X, dims=(3, -1)),)),
            Recipe((1,), {"x": (3, -1)}, True),
        ),
        (ModelConfig(inputs=(msgspec.structs.replace(X, dims=None),)), Recipe(None, {}, None)),
        (
            ModelConfig(inputs=(msgspec.structs.replace(X, reshape=(12,)),)),
            Recipe((1,), {"x": (12,)}, True),
        ),
        (ModelConfig(max_batch_size=0, inputs=(X,)), Recipe((1,), {"x": (3, 4)}, True)),
        (ModelConfig(max_batch_size=0), Recipe((1,), {}, True)),
        (
            ModelConfig(max_batch_size=0, inputs=(msgspec.structs.replace(X, dims=(-1, 4)),)),
            Recipe((1,), {"x": (-1, 4)}, True),
        ),
        (
            ModelConfig(max_batch_size=1, pads={"mask": 0.0}),
            Recipe((1,), pad={"mask": 0.0}),
        ),
    ],
)
def test_how_it_is_compiled(config: ModelConfig, recipe: Recipe) -> None:
    assert recipe_of(config) == recipe


def test_the_default_sizes_are_all_kept_where_they_are_asked_for() -> None:
    asked, silent = recipe_of(ModelConfig(max_batch_size=16)), recipe_of(ModelConfig())
    assert silent.batch_sizes is None
    same = msgspec.structs.replace(silent, whole=asked.whole, batch_sizes=asked.batch_sizes)
    names = {artifact_name("net", 1, "a", each) for each in (asked, silent)}
    assert (same, len(names)) == (asked, 2)


def test_dims_fix_some_dimensions_and_leave_others_open() -> None:
    text = 'max_batch_size: 1 input [{ name: "x" dims: [3, -1] }, { name: "y" dims: [-1] }]'
    assert recipe_of(read_config(text, "net")).shapes == {"x": (1, 3, -1)}
    text = 'max_batch_size: 0 input [{ name: "x" dims: [-1, 3] }, { name: "y" dims: [5] }]'
    assert recipe_of(read_config(text, "net")).shapes == {"x": (-1, 3), "y": (5,)}


def test_parameters_limit_open_dimensions() -> None:
    text = """
    parameters { key: "max.seq" value { string_value: "512" } }
    parameters { key: "max.x.1" value { string_value: "64" } }
    parameters { key: "maximum" value { string_value: "of something else" } }
    """
    recipe = recipe_of(read_config(text, "net"))
    assert recipe.most == {"seq": 512, "x.1": 64}
    assert artifact_name("net", 1, "a", recipe) != artifact_name("net", 1, "a", recipe_of(ModelConfig()))


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "99999999999"])
def test_a_limit_that_is_none_is_refused_with_its_line(value: str) -> None:
    text = f'name: "net"\nparameters {{ key: "max.seq" value {{ string_value: "{value}" }} }}'
    with pytest.raises(
        ConfigFault, match=r"^line 2: parameter max.seq is '.*'; max. and the name of an open"
    ):
        read_config(text, "net")


def test_an_artifact_is_called_by_all_that_it_is_made_of() -> None:
    names = {
        artifact_name("net", 1, "a" * 64, Recipe((1,))),
        artifact_name("net", 2, "a" * 64, Recipe((1,))),
        artifact_name("net", 1, "b" * 64, Recipe((1,))),
        artifact_name("net", 1, "a" * 64, Recipe((1, 2))),
        artifact_name("net", 1, "a" * 64, Recipe((1,), {"x": (1, 2)})),
        artifact_name("net", 1, "a" * 64, Recipe((1,), {"x": (1, 2)}, True)),
        artifact_name("net", 1, "a" * 64, Recipe((1,), pad={"x": 0.0})),
    }
    assert len(names) == 7
    assert all(is_artifact_name(name) and model_and_version(name)[0] == "net" for name in names)
    assert not is_artifact_name("net-1")


def test_libraries_of_operators_are_named_and_are_part_of_the_artifact() -> None:
    config = read_config('model_operations { op_library_filename: ["a.so", "b.so"] }', "net")
    assert (config.libraries, config.warnings) == (("a.so", "b.so"), ())
    names = {artifact_name("net", 1, "a", recipe_of(each)) for each in (config, ModelConfig())}
    assert len(names) == 2
    with pytest.raises(ConfigFault, match=r"line 1: .*op_library_filename"):
        read_config("model_operations { op_library_filename: 3 }", "net")


def test_what_is_as_usual_stands_in_no_name() -> None:
    told = b'{"batch_sizes":[1],"shapes":{}}'
    digest = hashlib.sha256(b"a" * 64 + told).hexdigest()
    assert artifact_name("net", 1, "a" * 64, Recipe((1,), whole=None)) == f"net@1-{digest[:12]}"


def test_padding_is_a_number() -> None:
    text = 'parameters {{ key: "pad.mask" value {{ string_value: "{}" }} }}'
    assert read_config(text.format("-1.5"), "net").pads == {"mask": -1.5}
    with pytest.raises(ConfigFault, match=r"pad\.mask is 'none'; pad\. and the name of an input"):
        read_config(text.format("none"), "net")


def made(**inputs: tuple[str, tuple[int, ...]]) -> ModelSpec:
    return ModelSpec(
        name="net@3-0123456789ab",
        weights_hash="w",
        executable="x",
        batch_sizes=(1,),
        weights_bytes=1,
        extents=(1,),
        inputs=tuple(TensorSpec(name, *tensor) for name, tensor in inputs.items()),
        outputs=(TensorSpec("y", "float32", (2,)),),
        profiles={"cpu": Profile({1: 1}, 1)},
    )


def test_what_clients_see() -> None:
    spec = served_spec(made(x=("float32", (3, 4))), "net", 3, ModelConfig(inputs=(X,)))
    assert (spec.public_name, spec.version, spec.inputs[0].shape) == ("net", 3, (3, 4))
    flat = TensorConfig(name="x", data_type="TYPE_FP32", dims=(12,), reshape=(3, 4))
    spec = served_spec(made(x=("float32", (3, 4))), "net", 3, ModelConfig(inputs=(flat,)))
    assert spec.inputs[0].shape == (12,)
    scalar = TensorConfig(name="x", dims=(1,), reshape=())
    assert served_spec(made(x=("int64", ())), "net", 3, ModelConfig(inputs=(scalar,))).inputs[0].shape == (1,)
    unbatched = ModelConfig(max_batch_size=0, inputs=(TensorConfig(name="x", dims=(-1, 3, -1)),))
    assert served_spec(made(x=("float32", (3, 4))), "net", 3, unbatched).inputs[0].shape == (3, 4)


def test_a_dimension_of_size_0_is_taken_where_the_model_has_it() -> None:
    config = read_config('max_batch_size: 4 input { name: "x" dims: [3, 0] }', "net")
    assert served_spec(made(x=("float32", (3, 0))), "net", 3, config).inputs[0].shape == (3, 0)
    with pytest.raises(ConfigFault, match=r"dims \[3, 0\] in config.pbtxt and \[3, 4\] in the model"):
        served_spec(made(x=("float32", (3, 4))), "net", 3, config)


def test_what_clients_see_of_whole_shapes() -> None:
    whole = msgspec.structs.replace(made(x=("float32", (1, 3, 4))), whole=True)
    for dims, reshape in (((1, 3, 4), None), ((3, 4), (1, 3, 4)), ((1, -1, 4), None)):
        config = ModelConfig(max_batch_size=0, inputs=(TensorConfig(name="x", dims=dims, reshape=reshape),))
        assert served_spec(whole, "net", 3, config).inputs[0].shape == (
            (1, 3, 4) if reshape is None else (3, 4)
        )
    scalar = msgspec.structs.replace(made(x=("float32", ())), whole=True)
    config = ModelConfig(max_batch_size=0, inputs=(TensorConfig(name="x", dims=(1,)),))
    assert served_spec(scalar, "net", 3, config).inputs[0].shape == (1,)
    wrong = ModelConfig(max_batch_size=0, inputs=(TensorConfig(name="x", dims=(3, 4)),))
    with pytest.raises(ConfigFault, match=r"dims \[3, 4\] in config.pbtxt and \[1, 3, 4\] in the model$"):
        served_spec(whole, "net", 3, wrong)


def test_open_dimensions_are_reshaped_in_their_order() -> None:
    opened = TensorSpec("x", "float32", (64, 6, 32), (OpenDim(0, (Term(0),)), OpenDim(2, (Term(1),))))
    spec = msgspec.structs.replace(
        made(), inputs=(opened,), symbols=(Symbol("a", (64,)), Symbol("b", (32,))), whole=True
    )

    def seen(dims: tuple[int, ...]) -> TensorSpec:
        given = TensorConfig(name="x", dims=dims, reshape=(-1, 6, -1))
        return served_spec(spec, "net", 3, ModelConfig(max_batch_size=0, inputs=(given,))).inputs[0]

    found = seen((2, -1, 3, -1))
    assert found.shape == (2, 64, 3, 32)
    assert found.at((5, 7)).shape == (2, 5, 3, 7)
    for dims in ((2, -1, 4, -1), (6, -1), (-1, -1, -1), (64, 6, 32)):
        with pytest.raises(ConfigFault, match="as many dimensions of -1"):
            seen(dims)


def test_more_rows_than_a_batch_can_have_are_lowered_with_one_warning() -> None:
    config = read_config("max_batch_size: 4096 dynamic_batching { preferred_batch_size: [2048, 64] }", "net")
    assert (config.max_batch_size, config.preferred_batch_sizes) == (MOST_ROWS, (64, MOST_ROWS))
    (warning,) = config.warnings
    assert "max_batch_size is 4,096; a request has at most 1,024 rows" in warning


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (TensorConfig(name="z"), "the model has no input 'z'; it has x"),
        (
            TensorConfig(name="x", data_type="TYPE_INT64"),
            "is TYPE_INT64 in config.pbtxt and TYPE_FP32 in the model",
        ),
        (TensorConfig(name="x", dims=(3, 5)), "has dims [3, 5] in config.pbtxt and [3, 4] in the model"),
        (TensorConfig(name="x", dims=(3,)), "has dims [3]"),
        (TensorConfig(name="x", dims=(11,), reshape=(3, 4)), "can't be reshaped from [11] to [3, 4]"),
    ],
)
def test_what_the_file_says_of_tensors_has_to_be_so(tensor: TensorConfig, says: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        served_spec(made(x=("float32", (3, 4))), "net", 3, ModelConfig(inputs=(tensor,)))
    assert says in str(caught.value)


@pytest.mark.parametrize("number", ["9" * 5_000, "0x" + "f" * 5_000, "0" + "7" * 6_000, "1." + "0" * 5_000])
def test_an_absurdly_long_number_is_refused_as_any_other(number: str) -> None:
    with pytest.raises(ConfigFault, match="max_batch_size must be a whole number, not inf"):
        read_config(f"max_batch_size: {number}", "net")


def test_of_many_warnings_the_first_are_told() -> None:
    config = read_config("\n".join(f"nothing_{number}: 1" for number in range(5_000)), "net")
    assert len(config.warnings) == MOST_WARNINGS + 1
    assert config.warnings[0].startswith("line 1: nothing_0 is ignored")
    assert (
        config.warnings[-1] == f"line {MOST_WARNINGS + 1}: there is more that is ignored, from this line on"
    )


def test_a_default_priority_without_priorities_means_nothing() -> None:
    config = read_config("dynamic_batching {\n default_priority_level: 2 }", "net")
    assert (config.priority_levels, config.default_priority) == (0, 0)
    assert config.warnings[0].startswith("line 2: default_priority_level of dynamic_batching is ignored")


def test_a_parameter_has_a_model_served_unverified() -> None:
    text = 'parameters {{ key: "unverified" value {{ string_value: "{}" }} }}'
    names = set()
    for value in ("true", "false"):
        recipe = recipe_of(read_config(text.format(value), "net"))
        assert recipe.unverified == (value == "true")
        names.add(artifact_name("net", 1, "digest", recipe))
    assert len(names) == 2
    assert artifact_name("net", 1, "digest", recipe_of(read_config("", "net"))) in names
    with pytest.raises(ConfigFault, match="unverified is 'yes'; it is true"):
        read_config(text.format("yes"), "net")


def test_a_parameter_says_how_long_texts_may_be() -> None:
    text = 'parameters {{ key: "text_bytes" value {{ string_value: "{}" }} }}'
    for value, found in (("4096", 4096), ("1", 1)):
        config = read_config(text.format(value), "net")
        assert (config.text_bytes, recipe_of(config).text_bytes) == (found, found)
    for wrong in ("0", "-1", "2 KiB", "1048577", ""):
        with pytest.raises(ConfigFault, match=r"text_bytes is .*; it is how many bytes each text"):
            read_config(text.format(wrong), "net")
    names = {
        artifact_name("net", 1, "digest", recipe_of(read_config(each, "net")))
        for each in ("", text.format(1024), text.format(4096))
    }
    assert len(names) == 2, "only another bound than the usual one makes another artifact"


def test_how_many_requests_may_wait_is_said_of_the_model() -> None:
    text = "dynamic_batching {{ default_queue_policy {{ max_queue_size: {} }} }}"
    config = read_config(text.format(2), "net")
    assert (config.max_queue_size, config.warnings) == (2, ())
    shown = msgspec.json.decode(as_json(config, given=True))
    assert shown["dynamic_batching"]["default_queue_policy"]["max_queue_size"] == 2
    assert read_config(text.format(0), "net").max_queue_size == read_config("", "net").max_queue_size == 0


def test_priorities_may_have_time_outs_of_their_own() -> None:
    text = """dynamic_batching {
        priority_levels: 3 default_priority_level: 2
        default_queue_policy { default_timeout_microseconds: 9000 }
        priority_queue_policy [
            { key: 1 value { default_timeout_microseconds: 2000 allow_timeout_override: true } },
            { key: 3 value { timeout_action: DELAY max_queue_size: 5 } }
        ]
    }"""
    config = read_config(text, "net")
    assert (config.slo_ns, config.priority_slos_ns) == (9_000_000, {1: 2_000_000, 3: 0})
    assert [each.split(": ")[1] for each in config.warnings] == [
        "allow_timeout_override of priority_queue_policy value is ignored",
        "max_queue_size of priority_queue_policy value is ignored",
        "timeout_action of priority_queue_policy value is ignored",
    ]
    shown = as_json(config, given=True)
    assert json.loads(shown)["dynamic_batching"]["priority_queue_policy"] == {
        "1": {"default_timeout_microseconds": 2000},
        "3": {"default_timeout_microseconds": 0},
    }
    assert read_json(shown, "net").priority_slos_ns == config.priority_slos_ns


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ("{ key: 4 }", "the key 4 of priority_queue_policy is none of the priorities 1 to 3"),
        ("{ key: 1 }, { key: 1 }", "the key 1 of priority_queue_policy stands here again"),
        ("{ }", "the key 0 of priority_queue_policy is none"),
    ],
)
def test_a_policy_is_of_a_priority_that_there_is(policies: str, says: str) -> None:
    batching = "priority_levels: 3 default_priority_level: 2 priority_queue_policy [ " + policies + " ]"
    with pytest.raises(ConfigFault, match=says):
        read_config(f"dynamic_batching {{ {batching} }}", "net")
    (warning,) = read_config("dynamic_batching { priority_queue_policy { key: 1 } }", "net").warnings
    assert "there are no priority_levels" in warning
