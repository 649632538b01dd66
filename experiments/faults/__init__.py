"""A local cluster under seeded kills and stops, every answer compared with ONNX Runtime's."""
