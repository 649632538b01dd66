"""A graph's file: what it says, and what is wrong with one that says nothing."""

from __future__ import annotations

import pytest

from mainspring.messages.graphs import GraphSpec, StepSpec, graph_fault, read_graph
from mainspring.messages.tables import ConfigError

TEXT = """
name = "read_text"
slo_ms = 150
inputs = ["image"]
[[steps]]
name = "find"
model = "detector:2"
inputs = { x = "image" }
[[steps]]
name = "read"
model = "recogniser"
inputs = { x = "find.lines" }
rows = "own"
when = "find.count > 0"
required = false
default = { text = "" }
[outputs]
text = ["read.text", "find.none"]
boxes = "find.boxes"
"""


def test_a_file_is_read_as_it_stands() -> None:
    assert read_graph(TEXT, "read_text.toml") == GraphSpec(
        name="read_text",
        slo_ms=150,
        inputs=("image",),
        steps=(
            StepSpec(name="find", model="detector:2", inputs={"x": "image"}),
            StepSpec(
                name="read",
                model="recogniser",
                inputs={"x": "find.lines"},
                rows="own",
                when="find.count > 0",
                required=False,
                default={"text": ""},
            ),
        ),
        outputs={"text": ("read.text", "find.none"), "boxes": "find.boxes"},
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("slo_ms = 150", "slo = 150", "g.toml has no key 'slo': it is given in milliseconds, as 'slo_ms'"),
        ("when =", "wen =", "g.toml, step 2 ('read') has no key 'wen'; did you mean 'when'?"),
        ('rows = "own"', 'rows = "mine"', "g.toml, step 2 ('read'): rows"),
        ('model = "recogniser"', "", "g.toml, step 2 ('read') needs the key 'model'"),
        ('inputs = ["image"]', "", "g.toml needs the key 'inputs'"),
        ("[outputs]", "[out", "g.toml is not TOML"),
        ("[[steps]]", "[steps]", "g.toml is not TOML"),
        ("slo_ms = 150", "slo_ms = inf", "slo_ms is inf; it must be a number that is finite"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_graph(TEXT.replace(old, new), "g.toml")
    assert says in str(raised.value)


def test_a_graph_has_steps() -> None:
    for text in ('name = "g"', 'name = "g"\nsteps = 3', "steps = [1]"):
        with pytest.raises(ConfigError, match=r"g.toml needs steps: one table \[\[steps\]\] for each model"):
            read_graph(text, "g.toml")


def test_what_a_graph_may_serve_is_listed() -> None:
    for kind in ("embeddings", "rerank"):
        assert graph_fault(read_graph(f'serves = "{kind}"' + TEXT, "read_text.toml")) is None
    with pytest.raises(ConfigError, match="serves"):
        read_graph('serves = "poems"' + TEXT, "read_text.toml")
