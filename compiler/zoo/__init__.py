"""Real architectures at their real sizes, with seeded random weights: models to try a cluster on;
and Python models, as folders that can be copied.

``build("resnet50", seed)`` makes an ONNX model; ``copies`` compiles many of them into a store.
"""

from mainspring.compiler.zoo.catalogue import build, names

__all__ = ["build", "names"]
