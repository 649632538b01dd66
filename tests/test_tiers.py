"""Every test has one tier, and a tier is what it says."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

import setup
from tests.conftest import pytest_collection_modifyitems
from tests.tiers import COMPILED, HEART, TESTS, TIER_OF, TIERS, covers, is_compiled, name_of, tier_of

NAMES = [name_of(path) for path in sorted(TESTS.rglob("test_*.py"))]
MOST_TIMING = 5


def tree_of(path: Path) -> ast.Module:
    """Return what a file holds, and nothing if it has no marker `timing`."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text if "mark.timing" in text else "")


def timing_tests(path: Path) -> list[tuple[str, ast.expr]]:
    """Return what has the marker `timing` in a file, by name."""
    return [
        (f"{name_of(path)}::{node.name}", decorator)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for decorator in node.decorator_list
        if "mark.timing" in ast.unparse(decorator)
    ]


def test_every_file_has_a_tier() -> None:
    without = [name for name in NAMES if tier_of(name) not in TIERS]
    assert not without, f"add these or their folders to TIER_OF of tests/tiers.py, as one of {[*TIERS]}"


def test_a_test_without_a_tier_is_refused_with_what_to_do() -> None:
    item = SimpleNamespace(path=TESTS / "new_folder" / "test_it.py")
    with pytest.raises(pytest.UsageError, match=r"new_folder/test_it.py has no tier: add .* TIER_OF"):
        pytest_collection_modifyitems(None, [item])  # type: ignore[arg-type, list-item]


@pytest.mark.parametrize("entry", [*TIER_OF, *HEART, *COMPILED])
def test_every_entry_is_of_a_test_that_is_there(entry: str) -> None:
    assert any(covers(entry, name) for name in NAMES), "rename or remove it in tests/tiers.py"


def test_the_longest_beginning_decides() -> None:
    assert tier_of("worker/test_server") == "cluster"
    assert tier_of("worker/core/test_core") == "unit"
    assert tier_of("client/test_client") == tier_of("client/test_client_of_all") == "cluster"
    assert tier_of("client/test_clientele") == "unit"


def test_the_heart_is_of_the_cluster() -> None:
    assert {tier_of(name) for name in NAMES if any(covers(entry, name) for entry in HEART)} == {"cluster"}


def test_what_is_compiled_is_tested_in_both_forms() -> None:
    patterns = [pattern for core in setup.MODULES.values() for pattern in core]
    folders = {pattern.rpartition("/")[0].removesuffix("/**") for pattern in patterns}
    assert folders >= {"cluster", "scheduler", "simulator", "worker/core"}
    assert {folder for folder in folders if not any(covers(entry, folder) for entry in COMPILED)} == set()
    assert is_compiled("scheduler/test_core")
    assert not is_compiled("compiler/test_batch")


def test_a_unit_test_can_open_no_port() -> None:
    with socket.socket() as bound, pytest.raises(AssertionError, match="'test_tiers' cluster in TIER_OF"):
        bound.bind(("127.0.0.1", 0))


def test_few_tests_may_run_once_more_and_each_says_why() -> None:
    marked = [found for path in TESTS.rglob("test_*.py") for found in timing_tests(path)]
    assert len(marked) <= MOST_TIMING, [name for name, _ in marked]
    for name, decorator in marked:
        assert isinstance(decorator, ast.Call), f"{name}: say beside `timing` why it measures real time"
        assert len(ast.literal_eval(decorator.args[0])) > 20, name


def test_the_marker_is_on_the_tests_themselves() -> None:
    for path in TESTS.rglob("test_*.py"):
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                assert "timing" not in ast.unparse(node.value), f"{path}: not for a whole file"
