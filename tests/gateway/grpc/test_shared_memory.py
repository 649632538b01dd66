"""System shared memory over gRPC, with Triton's own client and its module for it, unmodified."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import serialize_byte_tensor

from tests.gateway.grpc.conftest import LARGE_BYTES, Fake
from tests.gateway.grpc.tensors import COLUMNS, ROWS
from tests.gateway.grpc.test_live import refused
from tests.gateway.http.test_shared_memory import SIZE, Memory, memory
from tests.patience import PATIENCE_S

__all__ = ["memory"]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def module_fake() -> Iterator[Fake]:
    with ExitStack() as stack:
        yield Fake(stack)


@pytest.fixture
def client(module_fake: Fake) -> Iterator[InferenceServerClient]:
    yield module_fake.client
    module_fake.client.unregister_system_shared_memory()


def placed(
    name: str, datatype: str, shape: tuple[int, ...], size: int, offset: int = 0, region: str = "r"
) -> Any:
    tensor = InferInput(name, list(shape), datatype)
    tensor.set_shared_memory(region, size, offset)
    return tensor


def output(name: str, size: int, offset: int = 0, region: str = "r") -> Any:
    wanted = InferRequestedOutput(name)
    wanted.set_shared_memory(region, size, offset)
    return wanted


def test_tensors_go_through_shared_memory(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    (status,) = client.get_system_shared_memory_status("r").regions.values()
    assert (status.name, status.key, status.offset, status.byte_size) == ("r", memory.key, 0, SIZE)
    memory.put(X, 64)
    result = client.infer(
        "double",
        [placed("data", "FP32", (2, 4), 32, 64)],
        outputs=[output("twice", 32, 512), InferRequestedOutput("sum")],
    )
    assert (memory.get((2, 4), offset=512) == 2 * X).all()
    assert (result.as_numpy("sum") == X.sum(axis=1)).all()
    found = result.get_output("twice")
    assert (found.datatype, list(found.shape)) == ("FP32", [2, 4])
    assert "system_shared_memory" in client.get_server_metadata().extensions
    client.unregister_system_shared_memory("r")
    assert not client.get_system_shared_memory_status().regions


def test_a_stream_through_shared_memory(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    memory.put(X)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    tensors = [placed("data", "FP32", (2, 4), 32)]
    client.async_stream_infer("double", tensors, outputs=[output("twice", 32, 64)], request_id="good")
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    assert result.get_response().id == "good"
    assert (memory.get((2, 4), offset=64) == 2 * X).all()
    for wrong, said in (
        (placed("data", "FP32", (2, 4), 32, region="none"), "no shared memory region 'none'"),
        (placed("data", "FP32", (2, 4), 32, SIZE), "ends behind them"),
    ):
        client.async_stream_infer("double", [wrong])
        _, error = answers.get(timeout=PATIENCE_S)
        assert said in error.message()
    client.async_stream_infer("double", tensors)
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    client.stop_stream()
    assert (result.as_numpy("twice") == 2 * X).all()


def test_bytes_have_their_lengths_before_them(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    text = np.array(
        [[b"a" * (1 + row + column) for column in range(COLUMNS)] for row in range(ROWS)], np.object_
    )
    serialized = serialize_byte_tensor(text)
    memory.put(serialized, 1024)
    size = len(serialized.item())
    client.infer(
        "echo-S8",
        [placed("data", "BYTES", (ROWS, COLUMNS), size, 1024)],
        outputs=[output("same", size, 2048)],
    )
    assert (memory.get((ROWS, COLUMNS), np.object_, 2048) == text).all()


def test_a_large_output(client: Any) -> None:
    memory = Memory(LARGE_BYTES + 16)
    try:
        memory.put(np.full(LARGE_BYTES + 16, 7, np.uint8))
        client.register_system_shared_memory("r", memory.key, LARGE_BYTES + 16)
        given = InferInput("data", [1, 4], "FP32")
        given.set_data_from_numpy(X[:1])
        client.infer("large", [given], outputs=[output("much", LARGE_BYTES, 8)])
        found = memory.get((LARGE_BYTES + 16,), np.uint8)
        assert not found[8:-8].any()
        assert (found[:8] == 7).all()
        assert (found[-8:] == 7).all()
    finally:
        memory.destroy()


def test_what_is_not_there_or_does_not_fit(client: Any, memory: Memory) -> None:
    tensors = [placed("data", "FP32", (2, 4), 32)]
    with refused("INVALID_ARGUMENT", "can't be opened"):
        client.register_system_shared_memory("r", "/no-such-memory", 8)
    with refused("NOT_FOUND", "no shared memory region 'r'"):
        client.get_system_shared_memory_status("r")
    with refused("NOT_FOUND", "no shared memory region 'r'"):
        client.infer("double", tensors)
    client.register_system_shared_memory("r", memory.key, SIZE)
    with refused("ALREADY_EXISTS", "already"):
        client.register_system_shared_memory("r", memory.key, SIZE)
    with refused("INVALID_ARGUMENT", "ends behind them"):
        client.infer("double", tensors, outputs=[output("twice", 32, SIZE - 31)])
    with refused("INVALID_ARGUMENT", r"\(31 bytes\) should be at least 32 bytes"):
        client.infer("double", tensors, outputs=[output("twice", 31)])


def test_gpus_memory_is_not_shared(client: Any) -> None:
    client.unregister_cuda_shared_memory()
    assert not client.get_cuda_shared_memory_status().regions
    with refused("NOT_FOUND", "no region"):
        client.get_cuda_shared_memory_status("r")
    with refused("UNIMPLEMENTED", "CUDA shared memory is not served here"):
        client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 64)


def test_where_it_is_switched_off(memory: Memory) -> None:
    with ExitStack() as stack:
        client = Fake(stack, shared_memory=False).client
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
        with refused("UNIMPLEMENTED", "not served here"):
            client.register_system_shared_memory("r", memory.key, SIZE)
        with refused("UNIMPLEMENTED", "not served here"):
            client.infer("double", [placed("data", "FP32", (2, 4), 32)])
        assert "system_shared_memory" not in client.get_server_metadata().extensions
