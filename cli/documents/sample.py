"""A ``mainspring.toml`` with every key, its default and its meaning, from the structs themselves.

``python -m mainspring.cli.documents.sample`` prints what stands in ``docs/mainspring.toml``.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

import msgspec

from mainspring.cli.configuration.config import TABLES, is_key

HEAD = """\
# Every key of a mainspring.toml with its default: leave out what you don't change.
# `mainspring up FILE` reads it; without FILE, ./mainspring.toml if there is one. Flags override it.
"""
WIDTH = 100


def sample_toml() -> str:
    """Return the file's text."""
    return HEAD + "".join(_table(name, struct) for name, struct in TABLES.items())


def field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return what the struct's source says below each field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found, field = {}, ""
    for node in body.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                field = name
            case ast.Expr(value=ast.Constant(value=str(text))) if field:
                found[field] = " ".join(text.split())
                field = ""
            case _:
                field = ""
    return found


def _table(name: str, struct: type[msgspec.Struct]) -> str:
    meanings = field_docstrings(struct)
    lines = [f"\n[{name}]\n"]
    for field in msgspec.structs.fields(struct):
        if not is_key(name, field.name):
            continue
        meaning = meanings.get(field.name, "").replace("``", "`")
        lines += [f"# {line}\n" for line in textwrap.wrap(meaning, WIDTH - 2)]
        value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        lines.append(f"# {field.name} = \n" if value is None else f"{field.name} = {_toml(value)}\n")
    return "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return json.dumps(value)


if __name__ == "__main__":
    print(sample_toml(), end="")
