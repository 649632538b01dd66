"""What model.toml may say, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.python_models.description import read_description
from tests.python_models import HEAD, TENSORS


def test_all_that_it_may_say() -> None:
    found = read_description(
        """
rows = "own"
memory_mb = 64
timeout_ms = 250.5
start_s = 2
[most]
height = 640
[[inputs]]
name = "image"
dtype = "uint8"
shape = ["height", 3]
[[inputs]]
name = "text"
dtype = "bytes"
most_bytes = 99
shape = []
[[outputs]]
name = "lines"
dtype = "float32"
shape = ["<=64", 8]
"""
    )
    image, text = found.inputs
    assert (image.dtype, image.shape, [dim.axis for dim in image.open]) == ("uint8", (640, 3), [0])
    assert image.at((100,)) == (100, 3)
    assert (text.dtype, text.shape) == ("S99", ())
    assert (found.outputs[0].shape, found.outputs[0].varies) == ((64, 8), (0,))
    assert (found.symbols[0].name, found.symbols[0].limit) == ("height", 640)
    assert (found.memory_bytes, found.timeout_ns, found.start_ns) == (64 << 20, 250_500_000, 2_000_000_000)
    assert found.batch_sizes == (1,)


def test_sizes_are_sorted_and_defaults_hold() -> None:
    found = read_description(f'rows = "independent"\nbatch_sizes = [4, 1, 4]\n{TENSORS}')
    assert (found.batch_sizes, found.memory_bytes, found.timeout_ns) == ((1, 4), 512 << 20, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("memory_mb", "memory"), "has the key 'memory' and knows only .*did you mean 'memory_mb'"),
        (("shape = [3]", "shap = [3]"), r"table of \[\[inputs\]\] has the key 'shap'.*did you mean 'shape'"),
        (
            ("memory_mb = 256", "memory_mb = 'much'"),
            "memory_mb in model.toml is 'much'; it has to be a whole",
        ),
        (("memory_mb = 256", "memory_mb = 3"), "memory_mb is 3 in model.toml; it has to be from 32"),
        (("memory_mb = 256", "memory_mb = true"), "memory_mb in model.toml is True"),
        (("rows", "# rows"), "lacks 'rows'"),
        (('rows = "independent"', 'rows = "independant"'), "did you mean 'independent'"),
        (("[1, 2, 4]", "[0]"), r"batch_sizes is \[0\].*from 1 to 1024"),
        (("[1, 2, 4]", "[]"), r"batch_sizes is \[\]"),
        (('"independent"', '"own"'), r"because rows = 'own', it has to be \[1\]"),
        (('"independent"', '"dependent"'), r"because rows = 'dependent', it has to be \[1\]"),
        (("float32", "float31"), "dtype of 'x' is 'float31'.*did you mean 'float32'"),
        (("float32", "bfloat16"), "dtype of 'x' is 'bfloat16'"),
        (("shape = [3]", "shape = ['n']"), "shape of 'x' in model.toml has 'n': a dimension is a number"),
        (("shape = [3]", "shape = [-1]"), "has -1"),
        (("shape = [3]", "shape = ['<=3']"), "shape of 'x' in model.toml has '<=3'"),
        (
            ("shape = [3]", "most_bytes = 3\nshape = [3]"),
            "most_bytes of 'x' in model.toml is for dtype 'bytes'",
        ),
        (("[[inputs]]", "[most]\nn = 0\n[[inputs]]"), "most.n is 0"),
        (("[[inputs]]", "[most]\nn = 4\n[[inputs]]"), "most.n in model.toml is the size of no input"),
        (('name = "x"', 'nam = "x"'), "did you mean 'name'"),
        (("[[outputs]]", "[[outputs"), "is not TOML"),
        (("[[outputs]]", "[outputs]"), "outputs in model.toml is .*; it has to be a list"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], said: str) -> None:
    text = HEAD + TENSORS
    assert change[0] in text
    with pytest.raises(CompileError, match=said):
        read_description(text.replace(*change, 1))


def test_a_name_may_not_come_twice() -> None:
    twice = TENSORS + TENSORS.replace('"y"', '"z"')
    with pytest.raises(CompileError, match="names the input 'x' twice"):
        read_description(HEAD + twice)


def test_an_output_that_varies_is_of_one_row() -> None:
    before, _, after = (HEAD + TENSORS).rpartition("[3]")
    varies = f'{before}["<=3"]{after}'
    with pytest.raises(CompileError, match=r"because the output 'y' varies, it has to be \[1\]"):
        read_description(varies)
