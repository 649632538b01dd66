"""A plan as files: the spec with its counts, to be simulated, compared and run, and all that was found."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.planner.problem import Pool
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.spec_file import Table, move_paths

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def planned(table: Table, kinds: Sequence[str], pool: Pool) -> Table:
    """Return a spec's table with a pool's counts, 0 for kinds that it has not, and paths that lead from
    anywhere."""
    found = copy.deepcopy(table)
    counts = dict(zip(kinds, pool, strict=True))
    for group in found["devices"]:
        group["count"] = counts.get(group["kind"], 0)
    move_paths(found, Path.cwd())
    return found


def toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML: numbers and texts first, then tables, then lists of tables."""
    plain = [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not _is_part(value)]
    parts = ["\n".join(plain)] if plain else []
    for name, value in table.items():
        if isinstance(value, Mapping):
            parts.append(_table(f"[{_key(name)}]", value))
        elif _is_part(value):
            parts += [_table(f"[[{_key(name)}]]", each) for each in value]
    return "\n\n".join(parts) + "\n"


def digest(spec: SimulationSpec, *more: object) -> str:
    """Return a short digest of a spec and whatever else decides what estimates say."""
    data = msgspec.json.encode([spec, *more])
    return hashlib.sha256(data).hexdigest()[:12]


def _is_part(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _table(heading: str, table: Mapping[str, Any]) -> str:
    return "\n".join([heading, *[f"{_key(name)} = {_value(value)}" for name, value in table.items()]])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(str(name))} = {_value(each)}" for name, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
