"""Fifty ordinary pipelines of scikit-learn, compiled from what skl2onnx writes of them."""
