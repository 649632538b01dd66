"""Triton Inference Server with its Python backend, CPU only: fetched, set up, started, stopped.

The program is in the wheel of nvidia-pytriton, with a backend stub for each version of Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import onnx

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.foreign import Unavailable, environment
from mainspring.messages.model import ModelSpec, TensorSpec

PYTRITON = ("nvidia-pytriton==0.7.0",)
BACKEND = ("numpy<2", "onnxruntime")
START_S = 60.0
_READY = "/inference.GRPCInferenceService/ServerReady"

CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
input [ {inputs} ]
output [ {outputs} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{
  default_queue_policy {{ allow_timeout_override: true timeout_action: REJECT }}
}}
"""


_DATATYPES = {"float32": "TYPE_FP32", "int64": "TYPE_INT64"}


def write_repository(folder: Path, models: dict[str, onnx.ModelProto], spec: ModelSpec, batch: int) -> None:
    """Write a model repository: one instance of each model, requests dropped that time out in the queue.

    ``spec`` tells the shapes of all of them.
    """
    for name, model in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        onnx.save(model, str(version / "model.onnx"))
        shutil.copy(Path(__file__).with_name("onnx_model.py"), version / "model.py")
        inputs, outputs = ", ".join(map(_tensor, spec.inputs)), ", ".join(map(_tensor, spec.outputs))
        config = CONFIG.format(name=name, batch=batch, inputs=inputs, outputs=outputs)
        (folder / name / "config.pbtxt").write_text(config)


def _tensor(tensor: TensorSpec) -> str:
    opened = {dim.axis for dim in tensor.open}
    dims = ", ".join("-1" if axis in opened else str(size) for axis, size in enumerate(tensor.shape))
    return f'{{ name: "{tensor.name}" data_type: {_DATATYPES[tensor.dtype]} dims: [ {dims} ] }}'


@contextmanager
def triton(repository: Path, log: Path) -> Iterator[str]:
    """Run Triton on a repository; yield where it serves gRPC. Raises `Unavailable` if it does not start."""
    program, variables = _program()
    http, port, metrics = free_ports(3)
    command = [
        *(str(program / "bin" / "tritonserver"), f"--model-repository={repository}"),
        *(f"--backend-directory={program / 'backends'}", f"--http-port={http}", f"--grpc-port={port}"),
        *(f"--metrics-port={metrics}", "--allow-cpu-metrics=false", "--allow-gpu-metrics=false"),
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT)
    try:
        _wait(process, f"127.0.0.1:{port}", log)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program() -> tuple[Path, dict[str, str]]:
    wheel = environment("triton", PYTRITON, dependencies=False)
    backend = environment("triton-backend", BACKEND)
    found = next(wheel.glob("lib/python*/site-packages/pytriton/tritonserver"), None)
    if found is None:
        raise Unavailable("the wheel of nvidia-pytriton has no tritonserver for this machine")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = found / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise Unavailable(f"nvidia-pytriton has no Python backend for Python {version}")
    shutil.copy(stub, found / "backends" / "python")
    for program in (found / "bin" / "tritonserver", found / "backends" / "python" / stub.name):
        program.chmod(0o755)
    # The stub takes its packages from the environment of the first python3 on the path.
    variables = {"PATH": str(backend / "bin"), "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or ""}
    joined = {
        name: ":".join(filter(None, [first, os.environ.get(name)])) for name, first in variables.items()
    }
    return found, {**os.environ, **joined}


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    give_up = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        ready = channel.unary_unary(_READY)
        while time.monotonic() < give_up:
            if process.poll() is not None:
                break
            try:
                if ready(b"", timeout=1, wait_for_ready=True) == b"\x08\x01":
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines()
    words = "\n".join([line for line in lines if line.startswith("E")][:3] or lines[-3:])
    raise Unavailable(f"Triton does not start here: {words}")
