"""Stock sessions, beside which a model is compiled."""

from __future__ import annotations

import numpy as np
import onnx.parser
import psutil

from mainspring.compiler.reading.contents import serialise
from mainspring.compiler.reading.stock import StockSession

COLUMNS = 1 << 20
ROWS = 32
GRAPH = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,{COLUMNS}] x) => (float[N] y) {{
    a = Exp(x) b = Add(a, x) c = Mul(a, b) d = Sub(c, a) y = ReduceMax<axes=[1], keepdims=0>(d)
}}"""


def test_a_session_gives_the_memory_of_a_large_batch_back() -> None:
    session = StockSession(serialise(onnx.parser.parse_model(GRAPH)), optimised=False)
    batch = np.zeros((ROWS, COLUMNS), np.float32)
    session.run([batch[:1]])
    before = psutil.Process().memory_info().rss
    (found,) = session.run([batch])
    assert found.shape == (ROWS,)
    kept = psutil.Process().memory_info().rss - before
    assert kept < ROWS * COLUMNS * 4, "a batch's activations are three times as much"
