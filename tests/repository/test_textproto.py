"""The text format, compared with protobuf's own writer, and on what is not text format."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import given
from hypothesis import strategies as st

from mainspring.repository.textproto import MAX_DEPTH, MAX_VALUES, Message, SyntaxFault, Word, parse


def plain(value: Any) -> Any:
    """Return a value without lines."""
    if isinstance(value, Message):
        return {name: [plain(entry.value) for entry in entries] for name, entries in value.items()}
    return value


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
words = names.filter(lambda name: name.lower() not in {"inf", "infinity", "nan"})
texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False, allow_subnormal=False),
    texts,
    words.map(Word),
)
messages = st.recursive(
    st.dictionaries(names, st.lists(scalars, min_size=1, max_size=3), max_size=4),
    lambda inner: st.dictionaries(
        names, st.lists(st.one_of(scalars, inner), min_size=1, max_size=3), max_size=3
    ),
    max_leaves=12,
)


def written(message: dict[str, list[Any]], style: int) -> str:
    """Write fields in one of the ways that the format allows."""
    parts = []
    for name, values in message.items():
        whole = [value for value in values if not isinstance(value, dict)]
        if style % 2 and len(whole) == len(values) > 1:
            parts.append(f"{name}: [{', '.join(map(scalar, values))}]")
            continue
        for value in values:
            if isinstance(value, dict):
                opening, closing = (("{", "}"), ("<", ">"), (": {", "}"))[style % 3]
                parts.append(f"{name} {opening} {written(value, style)} {closing}")
            else:
                parts.append(f"{name}: {scalar(value)}")
    return ("\n", ", ", " ; ", " # comment\n")[style % 4].join(parts) + "\n"


def scalar(value: Any) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, str):
        return f'"{text_format.text_encoding.CEscape(value, as_utf8=False)}"'
    return repr(value)


@given(messages, st.integers(0, 11))
def test_what_was_written_is_read(message: dict[str, list[Any]], style: int) -> None:
    assert plain(parse(written(message, style))) == message


files = st.builds(
    lambda name, dependency, messages: descriptor_pb2.FileDescriptorProto(
        name=name,
        dependency=dependency,
        message_type=[
            descriptor_pb2.DescriptorProto(
                name=each,
                field=[
                    descriptor_pb2.FieldDescriptorProto(
                        name=each,
                        number=number,
                        type=kind,
                        label=1,
                        json_name=each,
                        proto3_optional=number % 2 == 0,
                    )
                ],
            )
            for each, number, kind in messages
        ],
    ),
    texts,
    st.lists(texts, max_size=3),
    st.lists(st.tuples(texts, st.integers(-5, 1 << 30), st.integers(1, 18)), max_size=3),
)


@given(files, st.booleans())
def test_what_protobuf_writes_is_read(file: descriptor_pb2.FileDescriptorProto, one_line: bool) -> None:
    found = parse(text_format.MessageToString(file, as_one_line=one_line))
    fields = [each["field"][0] for each in plain(found).get("message_type", [])]
    assert [field["number"] for field in fields] == [
        [message.field[0].number] for message in file.message_type
    ]
    kinds = descriptor_pb2.FieldDescriptorProto.Type
    assert [field["type"][0] for field in fields] == [
        kinds.Name(message.field[0].type) for message in file.message_type
    ]
    assert [entry.value for entry in found.get("dependency", [])] == list(file.dependency)
    assert plain(found).get("name", [""]) == [file.name]


@given(st.text("{}<>[]:,;-# \n\"'\\abx019.ef", max_size=40))
def test_nothing_but_a_syntax_fault_comes_of_garbage(text: str) -> None:
    with contextlib.suppress(SyntaxFault):
        assert all(
            entries and min(entry.line for entry in entries) > 0
            for entries in parse(text).values()
            if entries
        )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 0x1F", 31),
        ("a: 017", 15),
        ("a: - 3", -3),
        ("a: 1.5f", 1.5),
        ("a: 2.", 2.0),
        ("a: .5e1", 5.0),
        ("a: -INF", -math.inf),
        ("a: 'x' \"y\" # and\n 'z'", "xyz"),
        (r"a: '\x41\102\u00e9\U0001F600\n\?'", "AB\xe9\U0001f600\n?"),
        ("a: true;", "true"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert plain(parse(text)) == {"a": [value]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a 3", "line 1: ':' or '{' is expected, not 3"),
        ("a: 1\nb {\n c: 1", "line 3: the name of a field or '}' is expected, not the end"),
        ("a: [1, 2", "line 1: ',' or ']' is expected, not the end"),
        ("a: 'open\n'", "line 1: a text that does not end on its line"),
        ("a: 089", "octal"),
        ("a: -yes", "line 1: a number is expected, not yes"),
        ("a: @", "'@' can't stand here"),
        (r"a: '\q'", "not an escape"),
        (r"a: '\xff'", "not UTF-8"),
        (r"a: '\UFFFFFFFF'", "not a character"),
        ("[ext]: 1", "the name of a field is expected, not ["),
        ("}", "the name of a field is expected"),
        ("a {" * (MAX_DEPTH + 1), "nested"),
        ("#" * (1 << 21), "characters"),
    ],
)
def test_faults_name_the_line_and_what_is_expected(text: str, says: str) -> None:
    with pytest.raises(SyntaxFault) as caught:
        parse(text)
    assert says in str(caught.value)


def test_values_know_their_lines() -> None:
    found = parse("a: 1\n\nb {\n  c: 2 }\n")
    inner = found["b"][0].value
    assert isinstance(inner, Message)
    assert (found["a"][0].line, found["b"][0].line, inner["c"][0].line) == (1, 3, 4)


@pytest.mark.parametrize(
    ("piece", "line"),
    [("a: 1\n", MAX_VALUES + 1), ("a { b: 1 }\n", MAX_VALUES // 2 + 1), ("a: []\n", MAX_VALUES + 1)],
)
def test_more_values_than_anybody_writes_are_refused_at_the_first_that_is_too_many(
    piece: str, line: int
) -> None:
    with pytest.raises(SyntaxFault, match=f"^line {line}: more than 20,000 values"):
        parse(piece * (MAX_VALUES + 1))


@pytest.mark.parametrize("text", ["a: [" + "1," * MAX_VALUES + "1]", "a: " + '"x" ' * MAX_VALUES])
def test_elements_and_pieces_of_text_are_values_too(text: str) -> None:
    with pytest.raises(SyntaxFault, match=r"^line 1: more than 20,000 values"):
        parse(text)


def test_as_many_values_as_are_allowed_are_read() -> None:
    assert len(parse("a: 1\n" * MAX_VALUES)["a"]) == MAX_VALUES


def test_escapes_take_time_in_proportion_to_their_number() -> None:
    def cpu_s(count: int) -> float:
        text = 'x: "' + "\\n" * count + '"'
        taken = []
        for _ in range(3):
            began = time.process_time()
            parse(text)
            taken.append(time.process_time() - began)
        return min(taken)

    # Four times the text takes four times as long; were each escape to copy what was found, sixteen times.
    assert cpu_s(400_000) < 9 * cpu_s(100_000)
