"""Specs as TOML or JSON: what a file may hold, with errors that say what would be right.

A table for each part of `spec.SimulationSpec`; ``[[devices]]``, ``[[models]]`` and ``[[workload]]`` may come
several times. A key that a part does not have is an error that names the nearest one. Paths are relative to
the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from mainspring.messages.tables import ConfigError, build, suggestion
from mainspring.scheduler.config import SchedulerConfig, take_tenants
from mainspring.simulator.costs import ControllerCost
from mainspring.simulator.spec import (
    LOG,
    Crash,
    SimulationSpec,
    Spell,
    Spread,
    WorkloadSpec,
    refuse_over_log,
)
from mainspring.traces.arrival import FROM_FILE

_FIELDS = {each.name: each for each in msgspec.structs.fields(SimulationSpec)}
LISTS: dict[str, type[msgspec.Struct]] = {
    name: get_args(field.type)[0] for name, field in _FIELDS.items() if get_origin(field.type) is tuple
}
"""Parts of which there may be several."""
TABLES: dict[str, type[msgspec.Struct]] = {
    name: field.type for name, field in _FIELDS.items() if isinstance(field.default, msgspec.Struct)
}
PATHS = {"devices": ("profiles",), "models": ("profiles", "store"), "workload": ("trace", "log")}
"""Keys that are paths."""
INNER_PATHS = {("workload", "rows"): ("file", "log")}
"""Keys of tables within a part that are paths."""
PARTS = {**LISTS, **TABLES}
PRELOADS: tuple[str, ...] = get_args(get_type_hints(SimulationSpec)["preload"])
FAULT_LISTS: dict[str, type[msgspec.Struct]] = {"crashes": Crash, "spreads": Spread, "spells": Spell}
"""Lists within [faults]."""
_Plain = msgspec.defstruct(
    "_Plain",
    [(name, type(field.default), field.default) for name, field in _FIELDS.items() if name not in PARTS],
    kw_only=True,
)
"""The keys of a spec that stand in no table."""

Table = dict[str, Any]
Part = TypeVar("Part", bound=msgspec.Struct)


def read_spec(path: Path, settings: Sequence[str] = ()) -> SimulationSpec:
    """Read a spec from a file, with ``KEY=VALUE`` settings put over it (`apply_setting`).

    Raises `ConfigError` that names file, table and key, and what would be right.
    """
    return parse_spec(read_table(path, settings), path.name)


def read_table(path: Path, settings: Sequence[str] = ()) -> Table:
    """Return what a file holds, with settings put over it and its own paths made relative to here.

    Raises `ConfigError` for a file that can't be read, or is neither TOML nor JSON of tables.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    try:
        json = path.suffix == ".json"
        table = msgspec.json.decode(data) if json else tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file, and a spec is TOML or JSON") from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} holds no tables; docs/simulation.md shows a spec to begin with")
    move_paths(table, path.parent)
    for setting in settings:
        apply_setting(table, setting)
    take_tenants(table, str(path))
    return table


def move_paths(table: Table, folder: Path) -> None:
    """Make the relative paths of a spec's table those that lead on from a folder."""
    found = [
        (part, key) for name, keys in PATHS.items() for part in _parts(table.get(name, [])) for key in keys
    ]
    for (name, inner), keys in INNER_PATHS.items():
        inside = [part[inner] for part in _parts(table.get(name, [])) if isinstance(part.get(inner), dict)]
        found += [(part, key) for part in inside for key in keys]
    for part, key in found:
        if isinstance(part.get(key), str):
            part[key] = str(folder / part[key])


def apply_setting(table: Table, setting: str) -> None:
    """Put one ``KEY=VALUE`` into the table of a spec; raise `ConfigError` if it has no such form.

    ``seed=3``, ``scheduler.policy=edf``, ``workload.rate=500`` for all workloads, ``workload.1.rate=500``
    for the second alone. The value is written as in TOML; a text needs no quotes.
    """
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"a setting has the form KEY=VALUE, such as workload.rate=500, not {setting!r}")
    value: Any
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    _put(table, path, value, setting)


def put_trace(table: Table, trace: Path) -> None:
    """Let a spec's workloads that are read from a trace's file be read from this one.

    Raises `ConfigError` if there are none.
    """
    readers = [part for part in _parts(table.get("workload", [])) if part.get("kind") in list(FROM_FILE)]
    if not readers:
        kinds = " or ".join(str(kind.value) for kind in FROM_FILE)
        raise ConfigError(f"--trace {trace} would change nothing: no workload is of kind {kinds}")
    for part in readers:
        part["trace"] = str(trace.absolute())


def put_policy(table: Table, policy: str | None, options: Mapping[str, Any]) -> None:
    """Put a policy and options of it into the table of a spec.

    Another policy than the table's takes none of the options that the table has for that one.
    """
    if policy is None and not options:
        return
    scheduler = table.setdefault("scheduler", {})
    if not isinstance(scheduler, dict):
        return
    if policy is not None and policy != scheduler.get("policy", SchedulerConfig().policy):
        scheduler["policy_options"] = {}
    if policy is not None:
        scheduler["policy"] = policy
    if isinstance(kept := scheduler.setdefault("policy_options", {}), dict):
        scheduler["policy_options"] = {**kept, **options}


def parse_spec(table: Mapping[str, Any], source: str, *, planned: bool = False) -> SimulationSpec:
    """Return the spec of a table as `read_table` returns it; ``source`` names it in errors.

    Only a spec that is to be ``planned`` may leave counts of devices open. Raises `ConfigError`.
    """
    if not planned:
        _refuse_open_counts(table, source)
    values: Table = {}
    plain: Table = {}
    for name, part in table.items():
        if name in LISTS:
            values[name] = tuple(
                _entry(name, entry, f"{source}, [[{name}]] number {number}")
                for number, entry in enumerate(_checked_list(part, name, source), start=1)
            )
        elif name in TABLES:
            values[name] = _part(name, _checked_table(part, f"{source}, [{name}]"), source)
        elif name not in SimulationSpec.__struct_fields__:
            hint = suggestion(name, list(SimulationSpec.__struct_fields__), _elsewhere(None))
            raise ConfigError(f"{source} has no table or key {name!r}{hint}")
        else:
            plain[name] = part
    for name in LISTS:
        values.setdefault(name, ())
    values |= msgspec.structs.asdict(build(_Plain, plain, source, _elsewhere(None)))
    if values["preload"] not in PRELOADS:
        raise ConfigError(f"{source}: preload is {values['preload']!r}; choose {', '.join(PRELOADS)}")
    try:
        return SimulationSpec(**values)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _refuse_open_counts(table: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for devices of which a plan is to say how many there are."""
    for number, part in enumerate(_parts(table.get("devices", [])), start=1):
        if "most" in part and "count" not in part:
            raise ConfigError(
                f"{source}, [[devices]] number {number}: most without count leaves open how many there are: "
                f"give count, or let `mainspring plan {source}` find it"
            )


def _part(name: str, part: Table, source: str) -> msgspec.Struct:
    where = f"{source}, [{name}]"
    inner: Table = dict(part)
    for key, kind in FAULT_LISTS.items() if name == "faults" else ():
        if key in inner:
            entries = _checked_list(inner[key], f"faults.{key}", source)
            inner[key] = tuple(_build(kind, each, f"{source}, [[faults.{key}]]") for each in entries)
    if name == "cost" and "controller" in inner:
        at = f"{source}, [cost.controller]"
        inner["controller"] = _build(ControllerCost, _checked_table(inner["controller"], at), at)
    return _build(TABLES[name], inner, where)


def _entry(name: str, entry: Table, where: str) -> msgspec.Struct:
    if entry.get("kind") == LOG and name == "workload":
        try:
            # A value that equals the default is refused too: it would not be heeded either.
            refuse_over_log(key for key in entry if key in WorkloadSpec.__struct_fields__)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return _build(LISTS[name], entry, where)


def _build(struct: type[Part], table: Mapping[str, Any], where: str) -> Part:
    return build(struct, table, where, _elsewhere(struct))


def _elsewhere(but: type[msgspec.Struct] | None) -> dict[str, str]:
    """Return which table each key of the other parts belongs to."""
    found: dict[str, str] = {}
    for name, struct in PARTS.items():
        if struct is not but:
            found |= {field: name for field in struct.__struct_fields__ if field not in found}
    return found


def _checked_list(value: Any, name: str, source: str) -> list[Table]:
    if isinstance(value, Mapping):
        raise ConfigError(f"{source}: there may be several {name}: write [[{name}]], with two brackets")
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise ConfigError(f"{source}: {name} is a list of tables: write [[{name}]] before each")
    return value


def _checked_table(value: Any, where: str) -> Table:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is a table, not {value!r}")
    return value


def _parts(value: Any) -> list[Table]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _put(table: Any, path: list[str], value: Any, setting: str) -> None:
    """Set a value at a path; a list stands for each of its entries unless a number names one."""
    if isinstance(table, list):
        if path[0].isdecimal():
            if int(path[0]) >= len(table):
                raise ConfigError(f"{setting}: there are only {len(table)} entries, counted from 0")
            table, path = [table[int(path[0])]], path[1:]
        for entry in table:
            _put(entry, path, value, setting)
    elif not isinstance(table, dict) or not path:
        raise ConfigError(f"{setting}: there is nothing to set at this place")
    elif len(path) == 1:
        table[path[0]] = value
    else:
        _put(table.setdefault(path[0], {}), path[1:], value, setting)
