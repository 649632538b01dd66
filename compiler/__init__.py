"""Compiling ONNX files to artifacts: weights apart from kernels, in a content-addressed store.

Clockwork, section 5.1. The other processes use only ``artifact/``:

* ``manifest``   -- what an artifact is made of (`Manifest`, `ExecutableInfo`)
* ``store``      -- the artifacts on disk (`Store`)
* ``executable`` -- ONNX Runtime's graphs: opening them, binding weights to addresses, running them
* ``plan``, ``launching`` -- TVM's launch plans: their form, and running them on the CPU
* ``profiles``   -- models that exist only as a profile, for the emulated engine

The rest makes artifacts. Start reading at ``pipeline``, which calls the rooms in this order: ``reading``,
``rows`` and ``independence``, ``sizes``, ``program`` or ``tvm``, ``choosing``. ``reference`` is the original
that all of them compare with; ``zoo`` has architectures to try it on.
"""
