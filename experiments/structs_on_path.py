"""Which files a set of lines passes: those that hold the lines, and those of the structs that they create.

A struct (msgspec's, a NamedTuple or a dataclass) runs no line of its file when it is created. It counts where
a call of it stands on a line that ran, or where a function that ran takes it as a message: a decoder made it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_PRODUCT = ("tests", "experiments", ".venv")
MESSAGES = "mainspring.messages"
STRUCTS = {"Struct", "NamedTuple"}


def passed(ran: Iterable[tuple[str, int]]) -> set[str]:
    """Return the product's files that lines (file, number) pass, as paths below the repository's root."""
    lines: dict[str, set[int]] = {}
    for name, number in ran:
        path = ours(name)
        if path is not None:
            lines.setdefault(path, set()).add(number)
    created = {file for path, numbers in lines.items() for file in _created(path, numbers)}
    return lines.keys() | created


def ours(name: str) -> str | None:
    """Return a file of the product below the repository's root, None for any other."""
    if not name.startswith("/"):
        return None  # Code that was generated.
    try:
        path = Path(name).resolve().relative_to(ROOT)
    except ValueError:
        return None
    return None if path.parts[0] in NOT_PRODUCT else path.as_posix()


def _created(path: str, numbers: set[int]) -> Iterator[str]:
    names = _imported(path)
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and node.lineno in numbers and isinstance(node.func, ast.Name):
            wanted = [node.func.id]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _ran(node, numbers):
            wanted = [name for name in _taken(node) if names.get(name, ("",))[0].startswith(MESSAGES)]
        else:
            continue
        for name in wanted:
            file = None if name not in names else _file_of_struct(*names[name])
            if file is not None:
                yield file


def _ran(function: ast.FunctionDef | ast.AsyncFunctionDef, numbers: set[int]) -> bool:
    """Whether the function was called: its first line runs when it is defined, too."""
    first = function.body[0]
    return any(number in numbers for number in range(first.lineno, (function.end_lineno or first.lineno) + 1))


def _taken(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Return the names in its parameters' types."""
    for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        if argument.annotation is not None:
            yield from (node.id for node in ast.walk(argument.annotation) if isinstance(node, ast.Name))


def _file_of_struct(module: str, name: str) -> str | None:
    """Return the file that defines a struct, None if the name is none."""
    path = _path(module)
    if path is None:
        return None
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return path if _is_struct(path, node) else None
    further = _imported(path).get(name)
    return None if further is None else _file_of_struct(*further)


def _is_struct(path: str, node: ast.ClassDef) -> bool:
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return True
    bases = [
        base.id if isinstance(base, ast.Name) else ast.unparse(base).rpartition(".")[2] for base in node.bases
    ]
    here = {each.name: each for each in _tree(path).body if isinstance(each, ast.ClassDef)}
    for base in bases:
        if base in STRUCTS or (base in here and base != node.name and _is_struct(path, here[base])):
            return True
        further = _imported(path).get(base)
        if further is not None and _file_of_struct(*further) is not None:
            return True
    return False


@functools.cache
def _imported(path: str) -> dict[str, tuple[str, str]]:
    """Return what a file imports of ours by name: the module and the name there."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mainspring.")
        for alias in node.names
    }


def _path(module: str) -> str | None:
    """Return the file of a module of ours."""
    stem = module.removeprefix("mainspring.").replace(".", "/")
    return next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if (ROOT / path).is_file()), None)


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)
