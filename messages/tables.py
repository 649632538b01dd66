"""One table of ``mainspring.toml`` to one configuration struct, with errors that name what would be right.

A key that the struct does not have, a value of the wrong type and a missing key are each a `ConfigError` that
says file, table, key, and the nearest right key or what was expected. Nothing is guessed or ignored. Of a
key, option or verb that there is no more it says what to do instead: `FIXED` has numbers that no operator had
a reason to set (fields of the process's struct now, with the reason beside each), `MOVED` keys that another
replaces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from mainspring.messages.choices import did_you_mean, nearest

Config = TypeVar("Config", bound=msgspec.Struct)

UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "bytes": "bytes",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
}
"""The endings of names that are units."""

SIZES = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9,
    "b": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "k": 1 << 10, "kib": 1 << 10, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
}  # fmt: skip
"""Size of one of each unit that people write, in nanoseconds or in bytes."""
TIMES = ("ns", "us", "ms", "s", "m", "min", "h")


class ConfigError(Exception):
    """The configuration can't be used; the text names the file, the key and what would be right."""


def build(
    struct: type[Config],
    table: Mapping[str, Any],
    where: str,
    elsewhere: Mapping[str, str],
    hidden: Collection[str] = (),
) -> Config:
    """Return the struct with the table's values; ``where`` names file and table in errors (`ConfigError`).

    ``elsewhere`` says for keys of other tables which table they belong to; ``hidden`` are fields that are not
    suggested.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    values = {}
    for key, value in table.items():
        if key not in fields:
            known = [each for each in fields if each not in hidden]
            raise ConfigError(f"{where} has no key {key!r}{suggestion(key, known, elsewhere)}")
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            raise ConfigError(_wrong_value(where, key, value, fields[key].type, error)) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {key} is {value}; it must be a number that is finite")
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        raise ConfigError(f"{where} needs the key {missing[0]!r}")
    try:
        return struct(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from None


def suggestion(key: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    """Return the end of an error's sentence about an unknown key: what was probably meant, with its unit."""
    stem = split_unit(key)[0]
    for name in known:
        unit = split_unit(name)[1]
        if unit and split_unit(name)[0] == stem:
            return f": it is given in {UNITS[unit]}, as {name!r}"
    if key in elsewhere:
        return f": it belongs to [{elsewhere[key]}]"
    for name, table in elsewhere.items():
        unit = split_unit(name)[1]
        if unit and split_unit(name)[0] == stem:
            return f": it belongs to [{table}] and is given in {UNITS[unit]}, as {name!r}"
    near = nearest(key, [*known, *elsewhere])
    if near and near not in known:
        return f"; did you mean {near!r} in [{elsewhere[near]}]?"
    if near:
        unit = split_unit(near)[1]
        given = f", in {UNITS[unit]}" if unit and unit != split_unit(key)[1] else ""
        return f"; did you mean {near!r}{given}?"
    return f"; it knows {', '.join(sorted(known))}"


def split_unit(name: str) -> tuple[str, str]:
    """Return the name without its unit, and the unit, which is empty if it has none."""
    stem, _, ending = name.rpartition("_")
    return (stem, ending) if stem and ending in UNITS else (name, "")


def _wrong_value(where: str, key: str, value: Any, kind: Any, error: msgspec.ValidationError) -> str:
    if get_origin(kind) is dict and isinstance(value, Mapping):
        for name, item in value.items():
            try:
                msgspec.convert(item, get_args(kind)[1])
            except msgspec.ValidationError as inner:
                return _wrong_entry(
                    where, f"{key}.{name}", split_unit(key)[1], item, get_args(kind)[1], inner
                )
    return _wrong_entry(where, key, split_unit(key)[1], value, kind, error)


def _wrong_entry(
    where: str, key: str, unit: str, value: Any, kind: Any, error: msgspec.ValidationError
) -> str:
    plain = get_origin(kind) is not dict
    if (
        plain
        and isinstance(value, str)
        and unit
        and (found := re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value))
    ):
        right = _in_unit(found[1], found[2], unit)
        example = f": write {key} = {right}" if right else ""
        return f"{where}: {key} is a plain number of {UNITS[unit]}, not the text {value!r}{example}"
    expected = f"{_type_name(kind)} of {UNITS[unit]}" if unit else _type_name(kind)
    if isinstance(value, str) and (words := _words(kind)):
        return f"{where}: {key} expects {expected}, not {value!r}{did_you_mean(value, words)}"
    reason = str(error)
    detail = f" ({reason[0].lower()}{reason[1:]})" if not reason.startswith("Expected") else ""
    return f"{where}: {key} expects {expected}, not {_as_toml(value)}{detail}"


def _words(kind: Any) -> list[str]:
    """Return the texts that a key of this kind may have, if those are listed."""
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if isinstance(each, str)]
    return [word for part in get_args(kind) for word in _words(part)]


def _in_unit(number: str, given: str, unit: str) -> str:
    """Return what a text such as ``10s`` is in a key's unit; empty if it is not such a quantity."""
    given = given.lower() or unit
    if given not in SIZES or (given in TIMES) != (unit in TIMES):
        return ""
    try:
        return f"{float(number) * SIZES[given] / SIZES[unit]:.15g}"
    except ValueError:
        return ""


def _as_toml(value: Any) -> str:
    """Return a value as it stands in the file."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _type_name(kind: Any) -> str:
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a text in quotes",
        bool: "true or false",
        type(None): "nothing",
    }
    arguments = get_args(kind)
    if kind in names:
        return names[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"a table of {', '.join(kind.__struct_fields__)}"
    if arguments and get_origin(kind) is dict:
        return f"a table, each value {_type_name(arguments[1])}"
    if arguments and get_origin(kind) in (tuple, list):
        return f"a list, each item {_type_name(arguments[0])}"
    return " or ".join(_type_name(part) for part in arguments if part is not type(None)) or str(kind)


FIXED: dict[str, tuple[str, ...]] = {
    "cluster": ("restart_delay_ms", "restart_delay_max_ms"),
    "scheduler": (
        *("load_window_ms", "load_capacity_ms", "idle_load_protect_ms", "equal_slack_ms", "max_attempts"),
        *("prepares_in_flight", "open_patience_ms", "open_within_ms"),
    ),
    "controller": (
        *("event_log_segment_bytes", "clock_window_samples", "join_pongs", "burst_messages"),
        *("message_max_bytes", "peer_backlog_messages", "observer_interval_ms", "observer_timeout_ms"),
        *("observer_backlog_bytes", "goodbye_linger_ms"),
    ),
    "gateway": (
        *("metrics_timeout_ms", "access_log_older_files", "max_answer_bytes_per_connection"),
        "zeromq_handshake_timeout_ms",
        *("zeromq_write_timeout_ms", "http_max_header_bytes", "http_max_pipelined", "http_shed_wait_ms"),
        *("http_header_timeout_ms", "http_body_idle_ms", "http_body_timeout_ms", "http_idle_timeout_ms"),
        *("http_write_timeout_ms", "grpc_max_metadata_bytes", "grpc_backlog_bytes"),
        *("grpc_handshake_timeout_ms", "grpc_keepalive_ms", "grpc_keepalive_timeout_ms"),
        *("grpc_idle_timeout_ms", "reply_backlog_messages", "reply_backlog_bytes"),
        *("input_backlog_messages", "input_backlog_bytes", "controller_backlog_messages"),
        *("hello_interval_ms", "admin_timeout_ms", "max_admin_requests", "token_reload_ms"),
        *("burst_messages", "goodbye_linger_ms"),
    ),
    "worker": (
        *("emulated_seed", "emulated_jitter", "emulated_open_ms", "early_inputs", "early_input_bytes"),
        *("early_input_age_ms", "output_backlog_bytes", "controller_silence_ms", "hello_retry_ms"),
    ),
    "repository": ("prepare_patience_s", "controller_timeout_ms"),
    "console": (
        *("token_reload_ms", "update_interval_ms", "query_share", "slice_ms", "max_pages"),
        *("max_connections", "max_message_bytes", "max_header_bytes", "header_timeout_ms"),
        *("ping_interval_ms", "operate_timeout_ms", "max_operations", "stop_timeout_ms"),
    ),
    "transport": ("handshakes_at_once", "all_handshakes_at_once", "all_handshakes_per_s"),
}
"""Fields of each table's struct that the file can't set."""

MOVED: dict[tuple[str, str], str] = {
    ("scheduler", "refuse"): 'set refuse_wrongly: 0 is what "last" was, and more what "early" was',
    ("scheduler", "max_queue_sizes"): "set max_queue_size in [models.NAME]",
    ("scheduler", "goodput_weights"): "set goodput_weight in [models.NAME]",
    ("scheduler", "own_workers"): "set workers in [models.NAME]",
    ("scheduler", "tenant_weights"): "write NAME = WEIGHT in [tenants]",
    ("gateway", "model_max_rows"): "set max_rows_per_request in [models.NAME]",
    ("gateway", "zeromq_message_idle_ms"): "libzmq takes in messages, of known clients alone",
    ("gateway", "zeromq_message_timeout_ms"): "libzmq takes in messages, of known clients alone",
    **{
        (table, "secret_file"): "processes of one user on one host need none, others need [cluster] keys"
        for table in ("cluster", "controller", "gateway", "worker", "repository", "console")
    },
}
"""Keys that another one replaces, by table and key."""

OPTIONS: dict[str, str] = {
    "simulate --refuse": "with a SPEC, --set scheduler.refuse_wrongly=0 refuses nothing early",
    "replay --scale": "multiply --rate instead",
    "replay --start": "cut the trace's file instead",
    "replay --cv": "simulate a workload of kind gamma, or replay a trace",
    "replay --zipf": "the workload synthetic is skewed over models; or simulate one with zipf_exponent",
    "replay --think": "simulate a workload of kind closed with think_ms, or send less by --concurrency",
    "models index --ready": "--json says the state of each",
    "models live": "mainspring models --watch shows the same",
    "profile --markdown": "--csv and --json write the table",
    "token new --best-priority": "set best_priority in the line of the token's file",
    "worker --instruction-set": "set [worker] instruction_set in the file of --config",
    "gateway --grace": "set [gateway] grace_ms in the file of --config",
    **dict.fromkeys(("controller --insecure", "worker --insecure"), "beyond this host it needs --keys"),
    **{
        f"{verb} --secret-file": "processes of one user on one host need none, others need --keys"
        for verb in ("controller", "worker", "gateway", "console", "balance", "top", "trace", "explain")
    },
}
"""Options, and verbs of verbs, by how they were typed."""
