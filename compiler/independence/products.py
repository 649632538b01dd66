"""Products of matrices, recurrent layers, attention (no axis is kept that is summed over), tokens of texts.

Lists of tokens have as many columns as the longest in the batch, the others are padded: the width follows
from all rows, what stands in front of the padding from the row alone. A count of the tokens (TfIdfVectorizer)
depends on the row alone again, if none that it counts is the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.compiler.independence.elementwise import broadcast
from mainspring.compiler.independence.step import (
    Constant,
    Dim,
    NotProven,
    Padded,
    Rows,
    Rule,
    Shape,
    Step,
    Value,
    axis_of,
    rows_at,
)

_CONTRACTED = "sums over the batch"

_OTHERS = "multiplies each row with the others"


def matmul(left: Value, right: Value) -> Rows:
    """Return where the batch is in a product of (stacks of) matrices."""
    one, two = _dims(left), _dims(right)
    if len(one) < 2 or len(two) < 2:
        constant_vector = isinstance(right, Constant) and len(two) == 1
        if isinstance(left, Rows) and constant_vector and left.axis < left.rank - 1:
            return rows_at(left.shape[:-1], left.axis, left)
        raise NotProven("multiplies a vector")
    rank = max(len(one), len(two))
    stack = _stack(one[:-2], two[:-2])
    shape = (*stack, one[-2], two[-1])
    if isinstance(left, Rows) and isinstance(right, Rows):
        place, other = left.axis - left.rank, right.axis - right.rank
        if place >= -2 or other >= -2 or place != other or not left.same_slices(right):
            raise NotProven(_CONTRACTED if place == -1 and other == -2 else _OTHERS)
        return rows_at(shape, rank + place, left)
    source, constant = (left, two) if isinstance(left, Rows) else (right, one)
    if not isinstance(source, Rows):
        raise NotProven("multiplies no rows")
    place = source.axis - source.rank
    if place == (-1 if source is left else -2):
        raise NotProven(_CONTRACTED)
    if place < -2 and len(constant) >= -place and constant[place] != 1:
        raise NotProven("has a constant along the batch, so a row's result depends on its place")
    return rows_at(shape, rank + place, source)


def _stack(one: Shape, two: Shape) -> list[Dim]:
    rank = max(len(one), len(two))
    found: list[Dim] = []
    for back in range(rank, 0, -1):
        dims = [shape[len(shape) - back] for shape in (one, two) if len(shape) >= back]
        above = [dim for dim in dims if isinstance(dim, int) and dim != 1]
        found.append(above[0] if above else 1 if dims.count(1) == len(dims) else None)
    return found


def _dims(value: Value) -> Shape:
    if isinstance(value, Rows):
        return value.shape
    if isinstance(value, Constant) and value.shape is not None:
        return value.shape
    raise NotProven("multiplies with something of unknown shape")


def matmul_at(left: int, right: int) -> Rule:
    """Return the rule of a MatMul whose operands are these inputs; scales and zero points are constants."""

    def rule(step: Step) -> list[Value]:
        step.only_rows_in(left, right)
        found = matmul(step.given(left), step.given(right))
        return [found] * len(step.node.output)

    return rule


def fused_matmul(step: Step) -> list[Value]:
    """FusedMatMul: operands may be transposed in their last two axes."""
    if step.attribute("transBatchA", 0) or step.attribute("transBatchB", 0):
        raise NotProven("transposes its stacks")
    left = _turned(step.given(0), bool(step.attribute("transA", 0)))
    return [matmul(left, _turned(step.given(1), bool(step.attribute("transB", 0))))]


def _turned(value: Value, turns: bool) -> Value:
    if not turns:
        return value
    shape = (*_dims(value)[:-2], *_dims(value)[-2:][::-1])
    if isinstance(value, Rows):
        last = value.rank - 1
        axis = {last: last - 1, last - 1: last}.get(value.axis, value.axis)
        return rows_at(shape, axis, value)
    return Constant(shape)


def gemm(step: Step) -> list[Value]:
    """Gemm, whose third operand is broadcast to the product."""
    left = _turned(step.given(0), bool(step.attribute("transA", 0)))
    found = matmul(left, _turned(step.given(1), bool(step.attribute("transB", 0))))
    return [broadcast([found, step.given(2)]) if step.has(2) else found]


def quantised_gemm(step: Step) -> list[Value]:
    """QGemm of com.microsoft."""
    step.only_rows_in(0)
    left = _turned(step.given(0), bool(step.attribute("transA", 0)))
    return [matmul(left, _turned(step.given(3), bool(step.attribute("transB", 0))))]


def packed_product(step: Step) -> list[Value]:
    """MatMulNBits: the weights are packed, and their number of columns is an attribute."""
    step.only_rows_in(0)
    source = step.rows()
    if source.axis == source.rank - 1:
        raise NotProven(_CONTRACTED)
    return [rows_at((*source.shape[:-1], step.attribute("N")), source.axis, source)]


def einsum(step: Step) -> list[Value]:
    """Einsum, where one letter stands for the batch in every operand that has it."""
    text = str(step.attribute("equation", "")).replace(" ", "")
    operands, arrow, result = text.partition("->")
    terms = operands.split(",")
    if not arrow or "." in text or len(terms) != len(step.inputs):
        raise NotProven("has an equation that isn't followed")
    letter, source = "", None
    sizes: dict[str, Dim] = {}
    for term, value in zip(terms, step.inputs, strict=True):
        if value is None or len(_dims(value)) != len(term):
            raise NotProven("has an equation that isn't followed")
        if isinstance(value, Rows):
            if source is not None and (term[value.axis] != letter or not value.same_slices(source)):
                raise NotProven(_OTHERS)
            letter, source = term[value.axis], value
        for each, dim in zip(term, _dims(value), strict=True):
            # One operand's 1 is broadcast to the other's dimension.
            sizes[each] = dim if sizes.get(each, 1) == 1 else sizes[each]
    if source is None or letter not in result:
        raise NotProven(_CONTRACTED)
    for term, value in zip(terms, step.inputs, strict=True):
        places = [place for place, each in enumerate(term) if each == letter]
        if not isinstance(value, Rows) and places:
            raise NotProven("has a constant along the batch")
        if len(places) > 1:
            raise NotProven(_OTHERS)
    return [rows_at(tuple(sizes[each] for each in result), result.index(letter), source)]


def attention(first: Sequence[int], *, masks: Sequence[int] = (), biases: Sequence[int] = ()) -> Rule:
    """Return the rule of attention within each row, whose queries, keys and values are the inputs ``first``.

    ``masks`` have the batch first; ``biases`` too, or are constants along no batch; they are broadcast to
    the four axes of the scores. Everything else is constant.
    """

    def rule(step: Step) -> list[Value]:
        step.only_rows_in(*first, *masks, *biases)
        source = step.rows(first[0])
        for place in (*first, *masks, *biases):
            value = step.given(place) if step.has(place) else None
            if isinstance(value, Rows) and (value.axis != 0 or not value.same_slices(source)):
                raise NotProven("has the batch on different axes")
            if place in biases and isinstance(value, Rows) and value.rank != 4:
                raise NotProven("has a mask with the batch where a sequence belongs")
            if place not in first and isinstance(value, Constant) and not _is_shared(value, source.rank):
                raise NotProven("has a mask along the batch")
            if place in (*first[1:], *masks) and isinstance(value, Constant):
                raise NotProven("has constant keys, values or lengths")
        if source.axis != 0 or source.outer != 1 or source.inner != 1:
            raise NotProven("has the batch where a sequence belongs")
        if source.rank not in (3, 4):
            raise NotProven("has queries, keys and values in one input")
        if len(first) == 1 and sum(bool(name) for name in step.node.output) > 1:
            raise NotProven("puts keys and values together in front of the batch")
        ranks = (source.rank, *[4] * (len(step.node.output) - 1))
        return [rows_at((None,) * rank, 0, source) for rank in ranks]

    return rule


def _is_shared(value: Constant, rank: int) -> bool:
    return value.shape is not None and (len(value.shape) < max(rank, 3) or value.shape[0] == 1)


def recurrent(step: Step) -> list[Value]:
    """LSTM, GRU and RNN: each row is a sequence; in the layout 0 the batch is the second axis."""
    source = step.rows()
    first = bool(step.attribute("layout", 0))
    if source.axis != (0 if first else 1):
        raise NotProven("has the batch where time belongs")
    step.only_rows_in(0, 4, 5, 6)
    for place, axis in ((4, 0), (5, 0 if first else 1), (6, 0 if first else 1)):
        if not step.has(place):
            continue
        value = step.given(place)
        if not isinstance(value, Rows) or value.axis != axis or not value.same_slices(source):
            raise NotProven("has lengths or a first state of a fixed number of rows")
    axes = (0, 0, 0) if first else (2, 1, 1)
    return step.placed(*axes, like=source, ranks=(4, 3, 3))


_WIDTH = "is as wide as the longest text of the batch"


def tokenizer(step: Step) -> list[Value]:
    """Tokenizer of com.microsoft: one more axis, of tokens."""
    return [_padded(step.rows(), str(step.attribute("pad_value", "")))]


def string_split(step: Step) -> list[Value]:
    """StringSplit: one more axis, of parts; and their number."""
    source = step.rows()
    return [_padded(source, ""), source]


def _padded(source: Rows, pad: str) -> Padded:
    if source.axis != 0 or source.outer != 1 or source.inner != 1:
        raise NotProven("has the batch where tokens belong")
    return Padded(source.shape, pad)


def tf_idf(step: Step) -> list[Value]:
    """TfIdfVectorizer: one vector for each list of tokens."""
    value = step.given(0)
    columns = 1 + max(map(int, step.attribute("ngram_indexes", [0])), default=0)
    if isinstance(value, Padded):
        known = {
            text.decode(errors="replace") if isinstance(text, bytes) else text
            for text in step.attribute("pool_strings", [])
        }
        if value.pad in known:
            raise NotProven(f"counts {value.pad!r}, with which texts are padded to the longest of the batch")
        if value.texts != 1:
            raise NotProven(_WIDTH)
        return [Rows((value.dims[0], columns))]
    source = step.rows()
    if source.axis != 0 or source.rank != 2:
        raise NotProven("takes its input for a single example")
    return [rows_at((None, columns), 0, source)]


def follow_padded(step: Step) -> Sequence[Value]:
    """Return the outputs of a node that reads padded lists of tokens."""
    rule = _RULES.get(step.node.op_type)
    if rule is None:
        raise NotProven(f"reads tokens, whose tensor {_WIDTH}")
    return rule(step)


def _first(step: Step) -> Padded:
    value = step.given(0)
    if not isinstance(value, Padded):
        raise NotProven(f"reads tokens, whose tensor {_WIDTH}")
    step.only_rows_in(0)
    return value


def _same(step: Step) -> list[Value]:
    return [_first(step)]


def _flatten(step: Step) -> list[Value]:
    """Flatten of all axes but the first: the list of each row, if it has one text."""
    value = _first(step)
    if axis_of(step.attribute("axis", 1), len(value.dims) + 1) != 1 or value.texts != 1:
        raise NotProven(_WIDTH)
    return [Padded(value.dims[:1], value.pad)]


def _reshape(step: Step) -> list[Value]:
    """Reshape to a list for each row, which has one text."""
    value = _first(step)
    if step.integers(1, "shape") != [0, -1] or step.attribute("allowzero", 0) or value.texts != 1:
        raise NotProven(_WIDTH)
    return [Padded(value.dims[:1], value.pad)]


def _squeeze(step: Step) -> list[Value]:
    value, axes = _first(step), step.integers(1, "axes")
    rank = len(value.dims) + 1
    gone = {axis_of(axis, rank) for axis in axes or [0]}
    if not gone <= {*range(1, rank - 1)} or any(value.dims[axis] != 1 for axis in gone):
        raise NotProven(_WIDTH)
    return [Padded(tuple(dim for axis, dim in enumerate(value.dims) if axis not in gone), value.pad)]


_RULES: Mapping[str, Rule] = {
    "Flatten": _flatten,
    "Identity": _same,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "TfIdfVectorizer": tf_idf,
}
