"""Shape inference, in a process of its own: what it guards against ends the process."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import numpy as np
from onnx import TensorProto, helper
from mainspring.compiler.reading.normalise import infer_shapes

node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml",
                        keys_floats=[1.0, 2.0], values_strings=["a", "b"], default_string="c")
graph = helper.make_graph([node, helper.make_node("Identity", ["y"], ["z"])], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                          [helper.make_tensor_value_info("z", TensorProto.STRING, None)])
imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 2)]
model = helper.make_model(graph, opset_imports=imports, ir_version=8)
found = infer_shapes(model, data_prop=True).graph.output[0].type.tensor_type
print(found.elem_type == TensorProto.STRING, found.shape.dim[1].dim_value, model.graph.node[0].op_type)
"""


def test_an_encoder_of_floats_ends_no_process() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "3", "LabelEncoder"], done.stderr
