"""The tables of the client protocol, written from ``messages/``: what docs/messages.md holds.

``python -m mainspring.cli.documents.protocol > docs/messages.md`` writes it; a test compares.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec

from mainspring.cli.documents.sample import field_docstrings
from mainspring.messages import PROTOCOL_VERSION, clients, codes, model, peers, sharding
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus

PARTS: tuple[type[msgspec.Struct], ...] = (
    peers.TensorHeader,
    clients.Timing,
    model.ModelSpec,
    model.TensorSpec,
    model.OpenDim,
    model.Product,
    model.Term,
    model.Symbol,
    model.Profile,
    ClusterStatus,
    sharding.ShardStatus,
    WorkerStatus,
    ModelStatus,
)
"""Structs that messages are made of."""


def messages_page() -> str:
    """Return the page."""
    parts = [
        "# Messages",
        f"Protocol version {PROTOCOL_VERSION}. Written by `python -m mainspring.cli.documents.protocol` from "
        "`messages/`; [Protocol](protocol.md) says how they travel.",
        "## From client to gateway",
        *map(_section, get_args(clients.FromClient)),
        "## From gateway to client",
        *map(_section, get_args(clients.ToClient)),
        "## Parts",
        *map(_section, PARTS),
        "## Reasons",
        ", ".join(f"`{reason.value}`" for reason in codes.Reason) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _section(struct: type[msgspec.Struct]) -> str:
    config = struct.__struct_config__
    form = f'map with `"type": "{config.tag}"`' if config.tag else "array" if config.array_like else "map"
    first = (inspect.getdoc(struct) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    meanings = field_docstrings(struct)
    lines = [f"### {struct.__name__}", "", f"{first} A {form}.", ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        default = "required" if field.required else f"`{_default(field)}`"
        meaning = meanings.get(field.name, "").replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {_kind(field.type)} | {default} | {meaning} |")
    return "\n".join(lines)


def _default(field: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return {None: "nil", "": '""'}.get(value, repr(value)) if not isinstance(value, dict | list) else "empty"


def _kind(kind: Any) -> str:
    names = {int: "int", str: "str", bool: "bool", float: "float", type(None): "nil"}
    arguments = get_args(kind)
    if kind in names:
        return names[kind]
    origin = getattr(kind, "__origin__", None)
    if origin is tuple:
        return f"array of {_kind(arguments[0])}"
    if origin is dict:
        return f"map of {_kind(arguments[0])} to {_kind(arguments[1])}"
    if arguments:
        return " or ".join(map(_kind, arguments))
    return f"`{getattr(kind, '__name__', str(kind))}`"


if __name__ == "__main__":
    print(messages_page(), end="")
