"""What a failed run says: whether its inputs are at fault, and where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from mainspring.compiler.artifact.errors import ValuesError
from mainspring.compiler.artifact.executable import FATAL_ONLY, failed
from mainspring.compiler.artifact.manifest import ExecutableInfo

INFO = ExecutableInfo("0123456789abcdef", "x86_64-avx2", onnxruntime.__version__, (), (), (), ())
PICK = "g (int64[N] i) => (float[N] y) <float[2] w = {1, 2}> { y = Gather(w, i) }"


def error_of(graph: str, feeds: Mapping[str, Any]) -> Exception:
    """The error of ONNX Runtime's that running a graph raises."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    with pytest.raises(Exception, match="Non-zero status code") as raised:
        session.run(None, dict(feeds))
    return raised.value


@pytest.mark.parametrize(
    ("graph", "feeds", "says"),
    [
        (PICK, {"i": np.array([2])}, r"node Gather fails on these values: .*idx=2 must be within .*\[-2,1\]"),
        (
            "g (int64[N] x, int64[N] z) => (int64[N] y) { y = Div(x, z) }",
            {"x": np.array([1]), "z": np.array([0])},
            "node Div fails on these values: .*division by zero",
        ),
        (
            "g (float[6] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
            {"x": np.zeros(6, np.float32), "s": np.array([4, 4])},
            "node Reshape fails on these values: .*cannot be reshaped",
        ),
        (
            "g (string[N] x) => (int64[N] y) { y = Cast<to=7>(x) }",
            {"x": np.array(["abc"], object)},
            "node Cast fails on these values",
        ),
    ],
)
def test_a_node_that_fails_fails_on_values(graph: str, feeds: Mapping[str, Any], says: str) -> None:
    found = failed(INFO, 1, error_of(graph, feeds))
    assert isinstance(found, ValuesError)
    assert re.search(says, str(found))


def test_a_lack_of_memory_is_not_the_values_fault() -> None:
    """It may be that of others, or another worker has more."""
    graph = "g (int64[1] s) => (float[A] y) { y = ConstantOfShape(s) }"
    found = failed(INFO, 4, error_of(graph, {"s": np.array([1 << 50])}))
    assert not isinstance(found, ValuesError)
    assert str(found).startswith("executable 0123456789ab failed at batch size 4: ")


def test_what_fails_in_no_node_is_not_the_values_fault() -> None:
    assert not isinstance(failed(INFO, 1, RuntimeError("the session is closed")), ValuesError)
