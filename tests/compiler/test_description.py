"""What a model's description says of its sequences, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import parser

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.sample_forms import NOTHING, described
from mainspring.messages.sequencing import Control, Sequencing, State

WHOLE = """
[state.h]
output = "h_out"
initial = "h0.bin"
dims = [2, 3]
shown = true
[state."c.1"]
output = "c_out"
[sequence]
idle_s = 1.5
start = "first"
id = "stream"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "a net.toml"
    path.write_text(text)
    return path


def test_nothing_is_said() -> None:
    assert described(None) == NOTHING


def test_pairs_of_the_command_line() -> None:
    found = described(None, ["h=h_out", "a=b=c"])
    assert found.sequencing == Sequencing((State("h", "h_out"), State("a=b", "c")))
    assert found.options == " --state h=h_out --state a=b=c"


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "h0.bin").write_bytes(b"state")
    path = write(tmp_path, WHOLE)
    found = described(path, ["d=d_out"])
    assert found.sequencing == Sequencing(
        (State("d", "d_out"), State("h", "h_out", (2, 3), b"state", shown=True), State("c.1", "c_out")),
        (Control("first", "start"), Control("stream", "id")),
        1_500_000_000,
    )
    assert found.options == f" --state d=d_out --description '{path}'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "is not TOML"),
        ("[states.h]", "there is no key states; did you mean 'state'?"),
        ("[state]\nh = 1", "h is 1; it is a table"),
        ("[state.h]", "state.h.output is missing; it is a text"),
        ('[state.h]\noutput = "y"\ndim = [1]', "there is no key state.h.dim; did you mean 'dims'?"),
        ('[state.h]\noutput = "y"\ndims = [-1]', r"state.h.dims is \[-1\]; it is a list of sizes"),
        ('[state.h]\noutput = "y"\nshown = 1', "state.h.shown is 1; it is true or false"),
        ('[state.h]\noutput = "y"\ninitial = "none.bin"', "none.bin can't be read: No such file"),
        ("[sequence]\nidle_s = 0", "sequence.idle_s is 0; it is a number of seconds"),
        ("[sequence]\nstart = 3", "sequence.start is 3; it is a text"),
        ("[sequence]\nzzz = 'x'", "there is no key sequence.zzz; known are idle_s, start"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CompileError, match=says):
        described(write(tmp_path, text))


def test_what_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="can't be read: No such file"):
        described(tmp_path / "none.toml")
    with pytest.raises(CompileError, match="isn't an input and the output"):
        described(None, ["h"])
    (tmp_path / "h0.bin").write_bytes(b"")
    with pytest.raises(CompileError, match=r"h0.bin is empty; leave it out for zeros"):
        described(write(tmp_path, WHOLE))


def test_a_state_with_its_rows_behind_another_axis_is_carried_by_a_model_that_is_served_whole(
    tmp_path: Path,
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,5] x, float[2,N,5] state) => (float[N,5] y, float[2,N,5] next) {
            a = ReduceSum<keepdims=0>(state) t = Tanh(a) y = Add(x, t) next = Add(state, x)
        }"""
    (tmp_path / "net.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    states = described(None, ["state=next"])
    spec = compile_file(
        tmp_path / "net.onnx", "net", Store(tmp_path / "store"), whole=True, described=states
    ).manifest.spec()
    assert (spec.whole, spec.sequencing) == (True, Sequencing((State("state", "next"),)))
    wrong = described(None, ["state=y"])
    with pytest.raises(CompileError, match="the state from output 'y' to input 'state' is"):
        compile_file(tmp_path / "net.onnx", "net", Store(tmp_path / "store"), described=wrong)
