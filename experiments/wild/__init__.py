"""ONNX files as people have them, served as they lie and compared with ONNX Runtime: ``make wild``."""
