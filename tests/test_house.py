"""Lines are counted by what they are."""

from __future__ import annotations

from tests.house import FEATURES, features, kinds_of, product, rows

TEXT = '''"""A module.

With a text.
"""

import os
from sys import (
    path,
)

# Why.
TEXT = """no
docstring"""  # a comment beside code


def f():
    """Return 1."""
    return 1
'''


def test_each_line_is_of_one_kind() -> None:
    found = kinds_of(TEXT)
    assert found == {"docstrings": 4, "imports": 4, "comments": 1, "code": 4, "blank": 5}
    assert found.total() == len(TEXT.splitlines())


def test_the_house_is_counted_by_folder() -> None:
    names = [name for name, files, kinds in rows()]
    assert {"scheduler", "gateway", "experiments", "mainspring"} <= {*names}
    assert "tests" not in names


def test_each_file_of_the_product_belongs_to_one_feature() -> None:
    found = features()
    assert {*found} == {*FEATURES}, f"no feature has {found.get('')}"
    assert sorted(file for each in found.values() for file in each) == sorted(product())
    assert not [name for name, each in found.items() if not each], "a feature without files"
