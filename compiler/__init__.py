"""From ONNX files to artifacts: weights apart from kernels, in a content-addressed store.

Clockwork, section 5.1, for the ``onnxruntime`` CPU engine. What the other processes may use of this folder:

* ``manifest``   -- what an artifact is made of (`Manifest`, `ExecutableInfo`)
* ``store``      -- the artifacts on disk (`Store`)
* ``executable`` -- opening an executable, binding weights to addresses in an arena, running it
* ``profiles``   -- models that exist only as a profile, for the emulated engine

The rest makes artifacts: ``pipeline`` is where to start reading, ``zoo`` holds architectures to try it on.
"""
