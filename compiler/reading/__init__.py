"""ONNX files: reading them, one form for all, what can't be served replaced, stock sessions."""
