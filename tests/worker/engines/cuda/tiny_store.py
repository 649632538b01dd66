"""A store with models of `tiny_plans`, as the compiler would have stored them for a GPU."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.manifest import (
    CUDA,
    PROOF_VERSION,
    TVM,
    ExecutableInfo,
    Independence,
    Manifest,
    Source,
    Verification,
)
from mainspring.compiler.artifact.plan import CUBIN, SOURCE, Plans
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import TensorSpec
from tests.worker.engines.cuda import tiny_plans as tiny

CODE = b"machine code"
KERNELS = b"source"


def tiny_store(folder: Path, names: str = "ab", plans: Plans = tiny.PLANS) -> Store:
    """A model for each letter, all of one executable."""
    store = Store(folder)
    files = {name: hashlib.sha256(code).hexdigest() for name, code in ((CUBIN, CODE), (SOURCE, KERNELS))}
    content = msgspec.json.encode(msgspec.structs.replace(plans, files=files))
    info = ExecutableInfo(
        executable=hashlib.sha256(content).hexdigest(),
        instruction_set="portable",
        onnxruntime="",
        cpu_flags=(),
        weights=tiny.WEIGHTS,
        inputs=tiny.INPUTS,
        outputs=tiny.OUTPUTS,
        engine=TVM,
        device=CUDA,
    )
    store.put_executable(content, info, {CUBIN: CODE, SOURCE: KERNELS})
    for name in names:
        put_model(store, info, name)
    return store


def put_graph(store: Store, name: str, device: str = CUDA) -> None:
    """A model for the engine onnxruntime, as far as memory is planned for it."""
    info = ExecutableInfo(
        executable=hashlib.sha256(device.encode()).hexdigest(),
        instruction_set="portable",
        onnxruntime="",
        cpu_flags=(),
        weights=tiny.WEIGHTS,
        inputs=tiny.INPUTS,
        outputs=tiny.OUTPUTS,
        device=device,
    )
    store.put_executable(device.encode(), info)
    put_model(store, info, name)


def put_model(store: Store, info: ExecutableInfo, name: str) -> None:
    weights_hash, weights_bytes = store.put_weights([tiny.weights_file(ord(name))])
    store.put_manifest(
        Manifest(
            name=name,
            executable=info.executable,
            weights_hash=weights_hash,
            weights_bytes=weights_bytes,
            extents=(1, 1),
            tensors=tiny.TENSORS,
            inputs=(TensorSpec("x", "float32", (tiny.WIDTH,)),),
            outputs=(TensorSpec("y", "float32", (tiny.WIDTH,)),),
            batch_sizes=tiny.SIZES,
            profiles={},
            source=Source("onnx", "tiny.onnx"),
            verification=Verification(0.0, 0.0, 0.0, 0),
            engine=info.engine,
            independence=Independence(PROOF_VERSION),
        )
    )
