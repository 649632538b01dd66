"""NVIDIA GPUs as devices: memory, streams, copies, graphs and state (Clockwork, section 5.2).

Only `cupy_driver` and `nvml` touch CuPy, cuda-bindings and NVML, and import them at their first use:
everything else works on the protocols of `driver` and `state`, and is tested without a GPU.
"""
