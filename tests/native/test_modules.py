"""What is compiled keeps to what compiled code can do, and lacks nothing that it calls often."""

from __future__ import annotations

import ast
from glob import glob
from pathlib import Path

import pytest

import setup
from mainspring.native import CORES, Core

ROOT = Path(__file__).resolve().parent.parent.parent
STAYS_PYTHON = (
    *("mainspring/gateway/core/", "mainspring/gateway/restrictions.py", "mainspring/messages/"),
    *("mainspring/telemetry/series.py", "mainspring/traces/shapes.py", "mainspring/traces/source.py"),
)
"""What compiled modules import and is not compiled, beside packages and modules that define Structs."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_what_compiled_modules_import_is_compiled_too() -> None:
    compiled = {path for core in CORES for path in setup.compiled_files(core)}
    assert len(compiled) > 40
    others = [
        path
        for path in setup.read_files(sorted(compiled))
        if path not in compiled
        and not path.endswith("__init__.py")
        and not path.startswith(STAYS_PYTHON)
        and not setup.STRUCT.search(Path(path).read_bytes())
    ]
    assert not others, "add them to MODULES of setup.py"


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_every_pattern_of_a_core_names_something(core: Core) -> None:
    for pattern in setup.MODULES[core]:
        assert glob(f"mainspring/{pattern}", recursive=True), f"MODULES names {pattern}"


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_class_method_of_a_core_asks_super(core: Core) -> None:
    """mypyc would have it called with the class's own class."""
    for path in setup.read_files(setup.compiled_files(core)):
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.FunctionDef) and _is_class_method(node):
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                asks = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "super"]
                assert not asks, f"{path}:{node.lineno}: {node.name} is a class method that asks super()"


def _is_class_method(node: ast.FunctionDef) -> bool:
    names = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    return "classmethod" in names
