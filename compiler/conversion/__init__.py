"""From the files that people have to ONNX: estimators of scikit-learn and exported programs of PyTorch."""
