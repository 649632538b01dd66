"""Conversion of other formats to ONNX: estimators of scikit-learn and exported programs of PyTorch."""
