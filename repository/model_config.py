"""A model's ``config.pbtxt``: what it asks for, with a warning for each thing that can't be had.

Nothing of the file is passed over in silence: a field is honoured, warned of or refused (`reading`). What a
model is without a file, or with an empty one, are the defaults of `ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.messages.choices import one_of
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import MOST_TEXT_BYTES, TEXT_BYTES
from mainspring.messages.sequencing import Sequencing
from mainspring.repository.config_groups import WarmupInput, passed_on, read_sequences, read_warmup
from mainspring.repository.ensemble import read_ensemble
from mainspring.repository.reading import (
    BACKENDS,
    DATA_TYPES,
    INSTANCE_KINDS,
    PLATFORMS,
    TIMEOUT_ACTIONS,
    ConfigFault,
    Fields,
)
from mainspring.repository.textproto import Message, SyntaxFault, parse

MOST_VERSIONS = 1024
MOST_ROWS = 1024
"""Rows of the largest batch that is compiled."""
MAX_TIMEOUT_US = 3_600 * 10**6
"""The longest default time-out: an hour."""
MOST_PRIORITIES = 1_000
"""Priorities that the scheduler tells apart."""
LIMIT = "max."
"""Prefix of the names of parameters that limit an open dimension."""
MOST_SIZE = 1 << 30
TEXTS = "text_bytes"
"""The parameter that says how long texts may be."""
PAD = "pad."
"""Prefix of the names of parameters that give the value with which an input may be padded."""
UNVERIFIED = "unverified"
"""The parameter that has a model served that runs on no sample."""
MODEL_FILE = "model.onnx"


class TensorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the file about an input or output."""

    name: str
    data_type: str = ""
    """Type by its name in `DATA_TYPES`; empty if it is not said."""
    dims: tuple[int, ...] | None = None
    """Dimensions, without the batch if ``max_batch_size`` is above 0; -1 for any size; None if not said."""
    reshape: tuple[int, ...] | None = None
    """Shape that the model itself takes or gives instead of ``dims``."""
    optional: bool = False
    """True for an input that requests may leave out, for which the model has a default."""
    label_file: str = ""
    """File with the names of an output's classes, in the model's folder; empty if it has none."""


class VersionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of versions to be served among those in the repository: the default is the highest one."""

    latest: int | None = 1
    """Number of the highest versions that are served."""
    specific: tuple[int, ...] = ()
    """Exactly these. Neither ``latest`` nor these: all."""

    def choose(self, versions: list[int]) -> list[int]:
        """Return which of these versions are to be served, ascending."""
        ordered = sorted(versions)
        if self.specific:
            return [version for version in ordered if version in self.specific]
        return ordered if self.latest is None else ordered[-self.latest :]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A ``config.pbtxt`` as far as Mainspring honours it."""

    max_batch_size: int | None = None
    """Rows of the largest request; 0 for a model that is never batched; None if it is not said."""
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    version_policy: VersionPolicy = VersionPolicy()
    preferred_batch_sizes: tuple[int, ...] = ()
    slo_ns: int | None = None
    """SLO of requests that bring none."""
    max_queue_size: int = 0
    """Number of requests that may wait for it; 0: no bound of its own."""
    priority_levels: int = 0
    """The lowest priority of requests, 1 being the highest; 0: they have what they say."""
    default_priority: int = 0
    """Priority of requests that say none, or one beyond the lowest; only with ``priority_levels``."""
    priority_slos_ns: dict[int, int] = {}
    """SLOs of requests that bring none, by priority; 0: none. Other priorities have ``slo_ns``."""
    cache: bool = False
    parameters: dict[str, str] = {}
    limits: dict[str, int] = {}
    """Limits of open dimensions, by name: the values of the parameters `max.NAME`."""
    text_bytes: int = TEXT_BYTES
    """Longest text of inputs and outputs, in bytes: the value of the parameter `text_bytes`."""
    pads: dict[str, float] = {}
    """Values with which inputs may be padded to the sizes of others, by the inputs' names."""
    backend: str = "onnxruntime"
    file_name: str = MODEL_FILE
    """Name of the ONNX file in a version's folder."""
    sequencing: Sequencing | None = None
    """Sequencing of a model with ``sequence_batching``, without initial states that lie in files."""
    kept_inputs: tuple[TensorConfig, ...] = ()
    """Inputs that are states or controls, as the file has them."""
    kept_outputs: tuple[TensorConfig, ...] = ()
    """States' outputs that clients do not see, as the file has them."""
    initial_files: dict[str, str] = {}
    """Files of the initial states, by the input of the state, in the model's folder of these."""
    libraries: tuple[str, ...] = ()
    """Files of libraries of operators that the file names; none is loaded unless the operator allows it."""
    warmup: tuple[WarmupInput, ...] = ()
    """Rows that the model takes."""
    unverified: bool = False
    """True if it is served even where it runs on no sample: the value of the parameter `unverified`."""
    passed: dict[str, Any] = {}
    """Fields that nothing acts upon and clients may read, in the protocol's names."""
    graph: GraphSpec | None = None
    """Graph of models that it is, of an ensemble; None of a model with files of its own."""
    warnings: tuple[str, ...] = ()
    """Sentences about what is not honoured."""


def read_config(text: str, model: str) -> ModelConfig:
    """Return the configuration of the model in the folder ``model``; raise `ConfigFault`."""
    try:
        return read_fields(parse(text), model)
    except SyntaxFault as error:
        raise ConfigFault(str(error)) from None


def read_fields(message: Message, model: str) -> ModelConfig:
    """Return the configuration that these fields are; raise `ConfigFault`."""
    fields = Fields(message, "", [])
    fields.check()
    _check_name(fields, model)
    backend = _backend(fields)
    most = _most_rows(fields)
    batching, parameters = fields.message("dynamic_batching"), _parameters(fields)
    levels, default = _priorities(batching)
    slo_ns = _slo_ns(batching)
    inputs, outputs = _tensors(fields, "input"), _tensors(fields, "output")
    sequences = read_sequences(fields, [each.name for each in outputs])
    _check_instances(fields)
    return ModelConfig(
        max_batch_size=most,
        inputs=inputs,
        outputs=outputs,
        graph=read_ensemble(fields, model, _named(inputs), _named(outputs), slo_ns),
        sequencing=sequences.sequencing,
        kept_inputs=tuple([TensorConfig(name=n, data_type=t, dims=d) for n, t, d in sequences.inputs]),
        kept_outputs=tuple([TensorConfig(name=n, data_type=t, dims=d) for n, t, d in sequences.outputs]),
        initial_files=dict(sequences.files),
        version_policy=_version_policy(fields),
        preferred_batch_sizes=_preferred(batching, most),
        slo_ns=slo_ns,
        max_queue_size=_max_queue_size(batching),
        priority_levels=levels,
        default_priority=default,
        priority_slos_ns=_priority_slos_ns(batching, levels),
        cache=_flag(fields, "response_cache", "enable"),
        parameters=parameters,
        limits=_limits(fields, parameters),
        pads=_pads(fields, parameters),
        text_bytes=_text_bytes(fields, parameters),
        backend=backend,
        file_name=_file_name(fields),
        libraries=_libraries(fields),
        warmup=read_warmup(fields),
        unverified=_unverified(fields, parameters),
        passed=_passed(fields),
        warnings=tuple(fields.warnings),
    )


def _check_name(fields: Fields, model: str) -> None:
    name = fields.text("name", model)
    if name != model:
        raise ConfigFault(
            f"{fields.place('name')}: the name is {name!r} and the folder's is {model!r}; they must be equal"
        )


def _backend(fields: Fields) -> str:
    """Return what the file says that the model runs in; raise `ConfigFault` if that is none of ours."""
    for field, known in (("platform", PLATFORMS), ("backend", BACKENDS)):
        given = fields.text(field, "")
        if given not in known:
            right = " or ".join(repr(each) for each in sorted(known) if each)
            raise ConfigFault(
                f"{fields.place(field)}: {field} is {given!r}; Mainspring serves ONNX models and Python "
                f"code: {right}"
            )
    return fields.text("backend", "") or "onnxruntime"


def _named(tensors: tuple[TensorConfig, ...]) -> list[str]:
    return [each.name for each in tensors]


def as_json(config: ModelConfig, *, given: bool) -> str:
    """Return the file's fields as JSON in the protocol's names; what it leaves open is left out."""
    found: dict[str, Any] = {}
    if given:
        platform = {"platform": "onnxruntime_onnx"} if config.backend == "onnxruntime" else {}
        found = platform | {"backend": config.backend}
    policy = config.version_policy
    if policy.specific:
        found["version_policy"] = {"specific": {"versions": list(policy.specific)}}
    else:
        latest = policy.latest
        found["version_policy"] = {"all": {}} if latest is None else {"latest": {"num_versions": latest}}
    passed = dict(config.passed)
    batching: dict[str, Any] = dict(passed.pop("dynamic_batching", {}))
    queue: dict[str, Any] = batching.pop("default_queue_policy", {})
    if config.preferred_batch_sizes:
        batching["preferred_batch_size"] = list(config.preferred_batch_sizes)
    if config.priority_levels:
        batching["priority_levels"] = config.priority_levels
        batching["default_priority_level"] = config.default_priority
    if config.priority_slos_ns:
        batching["priority_queue_policy"] = {
            str(level): {"default_timeout_microseconds": ns // 1000}
            for level, ns in config.priority_slos_ns.items()
        }
    if config.slo_ns is not None:
        queue = {**queue, "default_timeout_microseconds": config.slo_ns // 1000}
    if config.max_queue_size:
        queue = {**queue, "max_queue_size": config.max_queue_size}
    if queue:
        batching["default_queue_policy"] = queue
    if batching:
        found["dynamic_batching"] = batching
    if config.max_batch_size is not None:
        found["max_batch_size"] = config.max_batch_size
    if config.cache:
        found["response_cache"] = {"enable": True}
    if config.parameters:
        found["parameters"] = {key: {"string_value": value} for key, value in config.parameters.items()}
    found["default_model_filename"] = config.file_name
    found |= passed
    return msgspec.json.encode(found).decode()


def _passed(fields: Fields) -> dict[str, Any]:
    found = passed_on(fields)
    for kind in ("input", "output"):
        tensors = [
            {"name": each.text("name", ""), **said}
            for each in fields.messages(kind)
            if (said := passed_on(each, kind))
        ]
        if tensors:
            found[kind] = tensors
    return found


def _tensors(fields: Fields, kind: str) -> tuple[TensorConfig, ...]:
    found: dict[str, TensorConfig] = {}
    for tensor in fields.messages(kind):
        name = tensor.text("name", "")
        if not name:
            raise ConfigFault(f"{tensor.where}: an {kind} needs a name")
        if name in found:
            raise ConfigFault(f"{tensor.where}: there are two {kind}s of the name {name!r}")
        data_type = tensor.word("data_type", "")
        if data_type and data_type not in DATA_TYPES:
            raise ConfigFault(
                f"{tensor.place('data_type')}: data_type {data_type} is none; "
                f"it is one of {one_of(data_type, DATA_TYPES)}"
            )
        reshape = tensor.message("reshape")
        found[name] = TensorConfig(
            name=name,
            data_type=data_type,
            dims=tensor.numbers("dims", -1, 1 << 40) if tensor.has("dims") else None,
            reshape=None if reshape is None else reshape.numbers("shape", -1, 1 << 40),
            label_file=_file_in_folder(tensor, "label_filename", "") if kind == "output" else "",
            optional=kind == "input" and tensor.flag("optional"),
        )
    return tuple(found.values())


def _version_policy(fields: Fields) -> VersionPolicy:
    policy = fields.message("version_policy")
    if policy is None:
        return VersionPolicy()
    given = [name for name in ("latest", "all", "specific") if policy.has(name)]
    if len(given) != 1:
        raise ConfigFault(
            f"{policy.where}: version_policy is one of latest, all and specific, "
            f"not {' and '.join(given) or 'none'}"
        )
    inner = policy.message(given[0])
    assert inner is not None
    match given[0]:
        case "all":
            return VersionPolicy(latest=None)
        case "latest":
            return VersionPolicy(latest=inner.count("num_versions", 1, 1, MOST_VERSIONS))
    versions = inner.numbers("versions", 1, (1 << 63) - 1)
    if not versions:
        raise ConfigFault(f"{inner.where}: specific names no versions; write versions: [1, 3]")
    return VersionPolicy(latest=None, specific=tuple(sorted({*versions})))


def _most_rows(fields: Fields) -> int | None:
    """Return the most rows of a request, those of the largest batch where more are said."""
    most = fields.number("max_batch_size", None, 0, (1 << 31) - 1)
    if most is None or most <= MOST_ROWS:
        return most
    fields.warnings.append(
        f"{fields.place('max_batch_size')}: max_batch_size is {most:,}; a request has at most {MOST_ROWS:,} "
        "rows, and the model is served with that"
    )
    return MOST_ROWS


def _preferred(batching: Fields | None, most: int | None) -> tuple[int, ...]:
    if batching is None:
        return ()
    sizes = tuple([min(each, MOST_ROWS) for each in batching.numbers("preferred_batch_size", 1, 1 << 31)])
    if most is not None and sizes and max(sizes) > most:
        raise ConfigFault(
            f"{batching.place('preferred_batch_size')}: a preferred_batch_size is {max(sizes)}, "
            f"above max_batch_size, which is {most}"
        )
    return tuple(sorted({*sizes}))


def _slo_ns(batching: Fields | None) -> int | None:
    policy = None if batching is None else batching.message("default_queue_policy")
    return None if policy is None else _timeout_ns(policy) or None


def _timeout_ns(policy: Fields) -> int:
    """Return the time-out of a queue's policy; 0 for none."""
    timeout_us = policy.count("default_timeout_microseconds", 0, 0, MAX_TIMEOUT_US)
    action = policy.word("timeout_action", "REJECT")
    if action not in TIMEOUT_ACTIONS:
        raise ConfigFault(
            f"{policy.place('timeout_action')}: timeout_action {action} is none; "
            f"it is one of {one_of(action, TIMEOUT_ACTIONS)}"
        )
    if action != "REJECT":
        policy.warn("timeout_action", "what can't be answered in time is rejected, not delayed")
    return timeout_us * 1000


def _priority_slos_ns(batching: Fields | None, levels: int) -> dict[int, int]:
    """Return the time-outs of priorities that have policies of their own."""
    found: dict[int, int] = {}
    policies = [] if batching is None else batching.messages("priority_queue_policy")
    for each in policies if levels else ():
        level = each.count("key", 0, 0, MOST_PRIORITIES)
        if not 1 <= level <= levels or level in found:
            wrong = "stands here again" if level in found else f"is none of the priorities 1 to {levels}"
            raise ConfigFault(f"{each.place('key')}: the key {level} of priority_queue_policy {wrong}")
        policy = each.message("value")
        found[level] = 0 if policy is None else _timeout_ns(policy)
    return found


def _max_queue_size(batching: Fields | None) -> int:
    policy = None if batching is None else batching.message("default_queue_policy")
    return 0 if policy is None else policy.count("max_queue_size", 0, 0, (1 << 32) - 1)


def _priorities(batching: Fields | None) -> tuple[int, int]:
    """Return the number of priorities and the default one, as Triton has them: none, or both."""
    if batching is None:
        return 0, 0
    levels = batching.count("priority_levels", 0, 0, MOST_PRIORITIES)
    default = batching.count("default_priority_level", 0, 0, MOST_PRIORITIES)
    if not levels:
        return 0, 0
    if not 1 <= default <= levels:
        raise ConfigFault(
            f"{batching.place('default_priority_level')}: default_priority_level is {default}; with "
            f"priority_levels: {levels} it is from 1, the highest, to {levels}"
        )
    return levels, default


def _libraries(fields: Fields) -> tuple[str, ...]:
    operations = fields.message("model_operations")
    return () if operations is None else operations.texts("op_library_filename")


def _flag(fields: Fields, message: str, name: str) -> bool:
    inner = fields.message(message)
    return inner is not None and inner.flag(name)


def _parameters(fields: Fields) -> dict[str, str]:
    found = {}
    for entry in fields.messages("parameters"):
        value = entry.message("value")
        found[entry.text("key", "")] = "" if value is None else value.text("string_value", "")
    return found


def _limits(fields: Fields, parameters: Mapping[str, str]) -> dict[str, int]:
    """Return the largest sizes that parameters give to open dimensions."""
    limits = {}
    for key, value in parameters.items():
        name = key.removeprefix(LIMIT)
        if name == key:
            continue
        if not name or not value.isdecimal() or not 1 <= int(value) <= MOST_SIZE:
            raise ConfigFault(
                f"{fields.place('parameters')}: parameter {key} is {value!r}; {LIMIT} and the name of an "
                f"open dimension has its largest size, from 1 to {MOST_SIZE:,}"
            )
        limits[name] = int(value)
    return limits


def _text_bytes(fields: Fields, parameters: Mapping[str, str]) -> int:
    """Return how long texts may be."""
    value = parameters.get(TEXTS, str(TEXT_BYTES))
    if not value.isdecimal() or not 1 <= int(value) <= MOST_TEXT_BYTES:
        raise ConfigFault(
            f"{fields.place('parameters')}: parameter {TEXTS} is {value!r}; it is how many bytes each "
            f"text of inputs and outputs may have, from 1 to {MOST_TEXT_BYTES:,}"
        )
    return int(value)


def _unverified(fields: Fields, parameters: Mapping[str, str]) -> bool:
    value = parameters.get(UNVERIFIED, "false")
    if value not in {"true", "false"}:
        raise ConfigFault(
            f"{fields.place('parameters')}: parameter {UNVERIFIED} is {value!r}; it is true to have a model "
            "served that runs on no sample, else false"
        )
    return value == "true"


def _pads(fields: Fields, parameters: Mapping[str, str]) -> dict[str, float]:
    """Return the values that parameters give for the padding of inputs."""
    pads = {}
    for key, value in parameters.items():
        name = key.removeprefix(PAD)
        if name == key:
            continue
        try:
            pads[name] = float(value)
        except ValueError:
            raise ConfigFault(
                f"{fields.place('parameters')}: parameter {key} is {value!r}; {PAD} and the name of an input "
                "has the number with which that is padded"
            ) from None
    return pads


def _file_name(fields: Fields) -> str:
    return _file_in_folder(fields, "default_model_filename", MODEL_FILE, "the folder of each version")


def _file_in_folder(fields: Fields, field: str, default: str, folder: str = "the model's folder") -> str:
    """Return a file's name; raise `ConfigFault` for a path."""
    if not fields.has(field):
        return default
    name = fields.text(field, default)
    if not name or "/" in name or name in {".", ".."}:
        raise ConfigFault(
            f"{fields.place(field)}: {name!r} is not the name of a file; {field} names one in {folder}"
        )
    return name


def _check_instances(fields: Fields) -> None:
    for group in fields.messages("instance_group"):
        kind = group.word("kind", "KIND_AUTO")
        if kind not in INSTANCE_KINDS:
            raise ConfigFault(
                f"{group.place('kind')}: kind {kind} is none; "
                f"it is one of {one_of(kind, sorted(INSTANCE_KINDS))}"
            )
        if group.count("count", 1, 0, 1 << 20) > 1:
            group.warn("count", "each worker runs a model once at a time; more workers run it more often")
        if kind == "KIND_GPU":
            group.warn("kind", "the cluster's workers decide which devices there are")
