"""What a unit is made from, and when its key changes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mainspring.native import units
from mainspring.native.units import UNITS, Unit
from tests.native.package import UNIT, write


def test_modules_of_a_unit_are_compiled_and_what_they_import_counts(tmp_path: Path) -> None:
    sources = units.read(UNIT, str(write(tmp_path)))
    assert sources.compiled == ("mainspring.inner.counter", "mainspring.inner.pair")
    assert sorted(sources.files) == [
        *("inner/__init__.py", "inner/counter.py", "inner/pair.py"),
        *("outer/__init__.py", "outer/constants.py"),
    ]


def test_what_is_excluded_stays_python(tmp_path: Path) -> None:
    sources = units.read(UNIT._replace(exclude=("inner/pair",)), str(write(tmp_path)))
    assert sources.compiled == ("mainspring.inner.counter",)


@pytest.mark.parametrize("path", ["inner/pair.py", "inner/__init__.py", "outer/constants.py"])
def test_key_changes_with_every_file_that_counts(tmp_path: Path, path: str) -> None:
    root = write(tmp_path)
    before = units.read(UNIT, str(root)).key
    assert units.read(UNIT, str(root)).key == before
    with (root / path).open("a") as file:
        file.write("# changed\n")
    assert units.read(UNIT, str(root)).key != before


def test_key_does_not_change_with_others(tmp_path: Path) -> None:
    root = write(tmp_path)
    before = units.read(UNIT, str(root)).key
    (root / "outer/stranger.py").write_text("changed = True\n")
    assert units.read(UNIT, str(root)).key == before


def test_key_changes_with_a_new_module_and_with_the_unit(tmp_path: Path) -> None:
    root = write(tmp_path)
    before = units.read(UNIT, str(root)).key
    assert units.read(UNIT._replace(exclude=("nothing",)), str(root)).key != before
    (root / "inner/third.py").write_text("")
    assert units.read(UNIT, str(root)).key != before


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_import_of_ours_counts(unit: Unit) -> None:
    """The quick search for imports finds what the syntax tree has."""
    root = Path(units.package_root())
    sources = units.read(unit, str(root))
    for path, source in sources.files.items():
        for name in _imports(ast.parse(source)):
            below = name.removeprefix("mainspring.").replace(".", "/")
            for candidate in (f"{below}.py", f"{below}/__init__.py"):
                if (root / candidate).is_file():
                    assert candidate in sources.files, f"{path} imports {name}, which the key leaves out"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_everything_that_units_name_exists(unit: Unit) -> None:
    root = Path(units.package_root())
    for entry in (*unit.include, *unit.exclude):
        assert (root / entry).is_dir() or (root / f"{entry}.py").is_file(), f"{unit.name} names {entry}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_no_class_method_of_a_unit_asks_super(unit: Unit) -> None:
    """mypyc would have it called with the class's own class."""
    root = Path(units.package_root())
    for path, source in units.read(unit, str(root)).files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and _is_class_method(node):
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                asks = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "super"]
                assert not asks, f"{path}:{node.lineno}: {node.name} is a class method that asks super()"


def _is_class_method(node: ast.FunctionDef) -> bool:
    names = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    return "classmethod" in names


def _imports(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("mainspring.")]
