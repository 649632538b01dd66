"""The table of the default policy's constants, and that the policy has no others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mainspring.cli.documents.constants import constants_table
from mainspring.scheduler.policies.mainspring import constants

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "scheduler" / "policies" / "mainspring"
OTHERS = sorted(file.name for file in FOLDER.glob("*.py") if file.name != "constants.py")


def test_each_constant_is_in_the_table() -> None:
    table = constants_table()
    names = [name for name in vars(constants) if name.isupper()]
    assert len(names) > 30
    assert [name for name in names if f"| `{name}` |" not in table] == []


@pytest.mark.parametrize("name", OTHERS)
def test_no_number_has_a_name_elsewhere(name: str) -> None:
    for node in ast.parse((FOLDER / name).read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            private = ast.unparse(node).startswith("_")
            assert private or not isinstance(node.value, ast.Constant | ast.BinOp), ast.unparse(node)
