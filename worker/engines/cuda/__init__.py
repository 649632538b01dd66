"""NVIDIA GPUs as devices: memory, streams, copies, graphs and state (Clockwork, section 5.2).

Only `cupy_driver`, `libcuda_driver` and `nvml` touch CuPy, cuda-bindings, libcuda and NVML, at their first
use: everything else works on the protocols of `driver` and `state`, and is tested without a GPU.
"""
