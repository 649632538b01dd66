"""Conditions: what they say of each row, and what is wrong with those that make no sense."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.graphs.conditions import (
    FUNCTIONS,
    MOST_CHARACTERS,
    Condition,
    ConditionError,
    Tensor,
)

TENSORS = {
    "fast.logits": Tensor("float32", (3,)),
    "find.count": Tensor("int64", ()),
    "find.boxes": Tensor("float32", (None, 4)),
    "small": Tensor("uint8", (2,)),
    "label": Tensor("S8", ()),
}
ROWS: dict[str, Any] = {
    "fast.logits": np.array([[0, 0, 3], [1, 1, 1], [np.nan, 0, 0]], np.float32),
    "find.count": np.array([0, 2, 5], np.int64),
    "find.boxes": np.zeros((3, 2, 4), np.float32),
    "small": np.array([[1, 2], [255, 255], [0, 9]], np.uint8),
    "label": np.array([b"cat", b"dog", b""], "S8"),
}


def true_for(text: str) -> list[bool]:
    return [bool(each) for each in Condition(text, TENSORS).rows(ROWS, 3)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("find.count > 0", [False, True, True]),
        ("0 < find.count < 5", [False, True, False]),
        ("find.count", [False, True, True]),
        ("not find.count", [True, False, False]),
        ("max(softmax(fast.logits)) < 0.6", [False, True, False]),
        ("top(fast.logits, 1) - top(fast.logits, 2) > 1", [True, False, False]),
        ("argmax(fast.logits) == 2 and find.count == 0", [True, False, False]),
        ("find.count == 0 or find.count >= 5", [True, False, True]),
        ("fast.logits[-1] == 3", [True, False, False]),
        ("fast.logits[0] != 1", [True, False, False]),
        ("fast.logits[0] == fast.logits[0]", [True, True, False]),
        ("count(fast.logits > 0.5) == 3", [False, True, False]),
        ("small[0] + small[1] == 510", [False, True, False]),
        ("small[0] - small[1] == -9", [False, False, True]),
        ("find.count // 2 == 1 and find.count % 2 == 0", [False, True, False]),
        ("1 / find.count > 1", [True, False, False]),
        ("label == 'cat'", [True, False, False]),
        ("label != 'cat' and label != ''", [False, True, False]),
        ("find.boxes[1, 3] == 0", [True, True, True]),
        ("find.boxes[7, 3] == 0", [False, False, False]),
        ("True", [True, True, True]),
        ("  find.count > 1", [False, True, True]),
    ],
)
def test_it_says_which_rows_take_part(text: str, rows: list[bool]) -> None:
    assert true_for(text) == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("find.cuont > 0", "column 1: there is no 'find.cuont' here; did you mean 'find.count'?"),
        ("find.count > 0 and fast.logits", "column 1: it has a value of shape [3] for each row"),
        ("find.count > 'a'", "column 14: a text is compared with a number"),
        ("label < 'b'", "column 9: texts are compared with == and != only"),
        ("label", "column 1: it is a text, not a truth"),
        ("fast.logits[3] > 0", "column 13: 3 is outside of axis 0 of shape [3]"),
        ("fast.logits[0.5] > 0", "column 13: an index has to be a whole number"),
        ("fast.logits[0, 0] > 0", "column 16: a row of shape [3] has no axis 1"),
        ("maximum(fast.logits) > 0", "column 1: there is no function 'maximum'"),
        ("max() > 0", "column 1: max() takes 1 argument, not 0"),
        ("max(find.count) > 0", "column 5: max() takes a tensor of a row, and this is a single value"),
        ("top(fast.logits, 4) > 0", "column 18: a row of shape [3] has no 4 elements"),
        ("top(fast.logits, 0) > 0", "column 18: top(x, k) takes a whole number"),
        ("fast.logits + small > 0", "column 1: shapes [3] and [2] of a row do not fit"),
        ("find.count >", "column 13"),
        ("find.count in small", "column 15: compare with <"),
        ("__import__('os')", "column 1: there is no function '__import__'"),
        ("find.count.real > 0", "column 1: 'find.count.real' is not known here"),
        ("(lambda: 1)()", "column 1"),
        ("[1 for x in label]", "column 1"),
        ("2 ** 99 > 0", "column 1: '2 ** 99' is not known here"),
        ("~find.count", "column 1: '~' is not known here"),
        ("b'a' == label", "column 1: b'a' is neither a number nor a text"),
        ("1" * 400 + " > 0", "column 1: a number is too large"),
        ("é > 0", "column 1: there is no"),
        ("'é' == label or nothing", "column 17: there is no 'nothing'"),
        ("", "column 1"),
        ("1 + " * 150 + "1", "more than 200 parts"),
        ("1" * (MOST_CHARACTERS + 1), "may have 1000"),
        ("(" * 400 + "1" + ")" * 400, "column"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, says: str) -> None:
    with pytest.raises(ConditionError) as raised:
        Condition(text, TENSORS)
    assert says in str(raised.value)


def test_it_tells_which_tensors_it_needs() -> None:
    assert Condition("find.count > 0 and max(small) < 9", TENSORS).names == {"find.count", "small"}


def test_open_dimensions_that_do_not_fit_are_said() -> None:
    tensors = {"a": Tensor("float32", (None,)), "b": Tensor("float32", (None,))}
    condition = Condition("sum(a * b) > 0", tensors)
    with pytest.raises(ConditionError, match="shape"):
        condition.rows({"a": np.ones((2, 3)), "b": np.ones((2, 4))}, 2)


def test_rows_without_elements_are_false_where_there_is_nothing_to_find() -> None:
    tensors = {"a": Tensor("float32", (None,))}
    empty = {"a": np.zeros((2, 0), np.float32)}
    for name in {*FUNCTIONS} - {"softmax", "sum", "count"}:
        assert not Condition(f"{name}(a) > -1", tensors).rows(empty, 2).any()
        assert not Condition(f"{name}(a)", tensors).rows(empty, 2).any()
    assert Condition("sum(a) == 0 and count(a) == 0", tensors).rows(empty, 2).all()
    assert not Condition("top(a, 1) > -1", tensors).rows(empty, 2).any()


NUMBERS = st.floats(-1e6, 1e6, width=32) | st.just(math.nan)
LEAVES = st.sampled_from(["a", "b", "x[0]", "max(x)", "sum(x)", "2", "0.5"])


def expressions() -> st.SearchStrategy[str]:
    """Of a bounded depth each: `st.recursive` takes minutes now and then."""
    joined = "({0[0]} {0[1]} {0[2]})".format
    sums: st.SearchStrategy[str] = LEAVES
    for _ in range(3):
        sums = LEAVES | st.tuples(sums, st.sampled_from("+-*"), sums).map(joined)
    found = compared = st.tuples(sums, st.sampled_from(["<", "<=", ">", ">=", "=="]), sums).map(joined)
    for _ in range(2):
        both = st.tuples(found, st.sampled_from(["and", "or"]), found).map(joined)
        found = compared | both | found.map("(not {})".format)
    return found


@given(expressions(), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_it_is_what_python_says_of_each_row(text: str, rows: list[tuple[float, ...]]) -> None:
    tensors = {name: Tensor("float64", ()) for name in "ab"} | {"x": Tensor("float64", (2,))}
    table = np.array(rows)
    found = Condition(text, tensors).rows({"a": table[:, 0], "b": table[:, 1], "x": table[:, 2:]}, len(rows))
    for (a, b, *x), truth in zip(rows, found, strict=True):
        names = {"a": a, "b": b, "x": x, "max": largest, "sum": sum}
        assert bool(eval(text, {"__builtins__": {}}, names)) == truth


def largest(values: list[float]) -> float:
    """As numpy's: NaN if one is."""
    return math.nan if any(map(math.isnan, values)) else max(values)
