"""System shared memory over HTTP, with Triton's own client and its module for it, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException, serialize_byte_tensor
from tritonclient.utils import shared_memory as shm

from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer
from tests.gateway.http.test_server import TOKENS, token_file

__all__ = ["TOKENS", "token_file"]
Fake = Callable[..., AbstractContextManager[Served]]
X = np.arange(8, dtype=np.float32).reshape(2, 4)
SIZE = 4_096
REGION = "/v2/systemsharedmemory"


class Memory:
    """A region's file, made by Triton's module."""

    def __init__(self, size: int = SIZE) -> None:
        self.key = f"/mainspring-{uuid.uuid4().hex}"
        self.handle = shm.create_shared_memory_region("r", self.key, size)
        self.size = size

    @property
    def path(self) -> Path:
        return Path("/dev/shm") / self.key.removeprefix("/")

    def put(self, array: Any, offset: int = 0) -> None:
        shm.set_shared_memory_region(self.handle, [array], offset)

    def get(self, shape: tuple[int, ...], dtype: Any = np.float32, offset: int = 0) -> Any:
        return np.array(shm.get_contents_as_numpy(self.handle, dtype, shape, offset))

    def destroy(self) -> None:
        """Remove it, unless it was."""
        if self.path.exists():
            shm.destroy_shared_memory_region(self.handle)


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory()
    yield memory
    memory.destroy()


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with http.InferenceServerClient(served.host, concurrency=4) as each:
        yield each
        each.unregister_system_shared_memory()


def placed(
    name: str, datatype: str, shape: tuple[int, ...], size: int, offset: int = 0, region: str = "r"
) -> Any:
    tensor = http.InferInput(name, list(shape), datatype)
    tensor.set_shared_memory(region, size, offset)
    return tensor


def output(name: str, size: int, offset: int = 0, region: str = "r") -> Any:
    wanted = http.InferRequestedOutput(name)
    wanted.set_shared_memory(region, size, offset)
    return wanted


def refused(status: int, match: str) -> Any:
    class Expected:
        def __enter__(self) -> None:
            self.raises = pytest.raises(InferenceServerException, match=match)
            self.caught = self.raises.__enter__()

        def __exit__(self, *details: Any) -> bool:
            swallowed = self.raises.__exit__(*details)
            assert self.caught.value.status() == str(status)
            return bool(swallowed)

    return Expected()


def test_tensors_go_through_shared_memory(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    (status,) = client.get_system_shared_memory_status()
    assert status == {"name": "r", "key": memory.key, "offset": 0, "byte_size": SIZE}
    memory.put(X, 64)
    result = client.infer(
        "double",
        [placed("data", "FP32", (2, 4), 32, 64)],
        outputs=[output("twice", 32, 512), output("sum", 100, 1024)],
    )
    assert (memory.get((2, 4), offset=512) == 2 * X).all()
    assert (memory.get((2,), offset=1024) == X.sum(axis=1)).all()
    assert result.get_output("sum") == {"name": "sum", "datatype": "FP32", "shape": [2]}
    client.unregister_system_shared_memory("r")
    assert client.get_system_shared_memory_status() == []
    assert "system_shared_memory" in client.get_server_metadata()["extensions"]


def test_some_tensors_there_and_others_not(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE - 64, 64)
    memory.put(X, 64)
    wanted = [http.InferRequestedOutput("sum", binary_data=False), output("twice", 32, 128)]
    result = client.infer("double", [placed("data", "FP32", (2, 4), 32)], outputs=wanted)
    assert (result.as_numpy("sum") == X.sum(axis=1)).all()
    assert (memory.get((2, 4), offset=192) == 2 * X).all()
    given = http.InferInput("data", [2, 4], "FP32")
    given.set_data_from_numpy(X + 1)
    client.infer("double", [given], outputs=[output("twice", 32, 128)])
    assert (memory.get((2, 4), offset=192) == 2 * X + 2).all()
    result = client.infer("double", [placed("data", "FP32", (2, 4), 32)])
    assert (result.as_numpy("twice") == 2 * X).all()


def test_a_large_tensor(client: Any) -> None:
    """One that is worked off in slices."""
    size = 4 << 20
    memory = Memory(2 * size)
    try:
        client.register_system_shared_memory("r", memory.key, 2 * size)
        x = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
        memory.put(x)
        client.infer(
            "wide", [placed("data", "FP32", (1, 1 << 20), size)], outputs=[output("twice", size, size)]
        )
        assert (memory.get((1, 1 << 20), offset=size) == 2 * x).all()
    finally:
        memory.destroy()


def test_what_is_not_there_or_does_not_fit(client: Any, memory: Memory) -> None:
    with refused(400, "can't be opened"):
        client.register_system_shared_memory("r", "/no-such-memory", 8)
    with refused(400, "which is shorter"):
        client.register_system_shared_memory("r", memory.key, SIZE * 64)
    with refused(404, "no shared memory region 'r'"):
        client.get_system_shared_memory_status("r")
    with refused(404, "no shared memory region 'r'"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32)])
    client.register_system_shared_memory("r", memory.key, SIZE)
    with refused(409, "already"):
        client.register_system_shared_memory("r", memory.key, SIZE)
    with refused(400, "ends behind them"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32, SIZE - 31)])
    with refused(400, "ends behind them"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32)], outputs=[output("twice", 32, SIZE)])
    with refused(400, "float32 and shape .* make 32"):
        client.infer("double", [placed("data", "FP32", (2, 4), 64)])
    with refused(400, r"\(31 bytes\) should be at least 32 bytes to hold the results"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32)], outputs=[output("twice", 31)])


def test_what_is_cut_short_or_removed(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    memory.destroy()
    assert client.infer("double", [placed("data", "FP32", (2, 4), 32)]).as_numpy("sum").tolist() == [0, 0]
    kept = Memory()
    client.register_system_shared_memory("cut", kept.key, SIZE)
    os.truncate(kept.path, 16)
    with refused(400, "has become shorter"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32, region="cut")])
    with refused(400, "has become shorter"):
        client.infer(
            "double", [placed("data", "FP32", (2, 4), 32)], outputs=[output("twice", 32, region="cut")]
        )
    assert kept.path.stat().st_size == 16
    kept.path.unlink()
    assert client.is_server_live()


def test_a_region_that_is_unregistered_during_a_request(served: Served, client: Any, memory: Memory) -> None:
    assert served.cluster is not None
    client.register_system_shared_memory("r", memory.key, SIZE)
    memory.put(X)
    arrivals = len(served.cluster.arrivals)
    asked = client.async_infer(
        "hold", [placed("data", "FP32", (2, 4), 32)], outputs=[output("twice", 32, 64)]
    )
    cluster = served.cluster
    wait_until(lambda: len(cluster.arrivals) > arrivals)
    memory.put(X + 1)
    client.unregister_system_shared_memory("r")
    with refused(404, "no shared memory region"):
        client.infer("double", [placed("data", "FP32", (2, 4), 32)])
    cluster.do(lambda: cluster.dispatch(cluster.arrivals[-1].request_id))
    asked.get_result(timeout=10)
    assert (memory.get((2, 4), offset=64) == 2 * X).all(), "inputs are those of when it was asked"


def test_a_request_that_fails_writes_nothing(client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    memory.put(X)
    memory.put(X, 64)
    with pytest.raises(InferenceServerException, match="too soon"):
        client.infer("reject", [placed("data", "FP32", (2, 4), 32)], outputs=[output("twice", 32, 64)])
    assert (memory.get((2, 4), offset=64) == X).all()


def test_bytes_have_their_lengths_before_them(real: Served, memory: Memory) -> None:
    with http.InferenceServerClient(real.host) as client:
        client.register_system_shared_memory("r", memory.key, SIZE)
        text = np.array([b"one", "zwölf".encode(), b""], dtype=np.object_)
        serialized = serialize_byte_tensor(text)
        memory.put(serialized)
        size = len(serialized.item())
        client.infer("text", [placed("in", "BYTES", (3,), size)], outputs=[output("out", 64, 128)])
        assert memory.get((3, 2), np.object_, 128).tolist() == [[b"", b""]] * 3
        with refused(400, "its shape makes 2 elements"):
            client.infer("text", [placed("in", "BYTES", (2,), size)])
        with refused(400, "3 elements of at most 16 bytes"):
            client.infer("text", [placed("in", "BYTES", (3,), 61)])
        client.unregister_system_shared_memory()


def test_tokens_do_not_see_each_other_s_regions(fake: Fake, token_file: str, memory: Memory) -> None:
    with fake(token_file=token_file) as served, http.InferenceServerClient(served.host) as client:
        search, slow = ({"authorization": f"Bearer {name}"} for name in ("search", "slow"))
        client.register_system_shared_memory("r", memory.key, SIZE, headers=search)
        assert client.get_system_shared_memory_status(headers=slow) == []
        with refused(404, "no shared memory region 'r'"):
            client.get_system_shared_memory_status("r", headers=slow)
        client.unregister_system_shared_memory(headers=search)
        with refused(401, "token"):
            client.register_system_shared_memory("r", memory.key, SIZE)


def test_other_sites_pages_do_not_reach_it(served: Served, client: Any, memory: Memory) -> None:
    client.register_system_shared_memory("r", memory.key, SIZE)
    part = {"shared_memory_region": "r", "shared_memory_byte_size": 32}
    asked = {"name": "data", "shape": [2, 4], "datatype": "FP32", "parameters": part}
    body = json.dumps({"inputs": [asked]}).encode()
    with Peer(served.host) as peer:
        assert peer.ask("POST", "/v2/models/double/infer", body).status == 200
        page = {"origin": "http://evil.example"}
        assert peer.ask("POST", "/v2/models/double/infer", body, **page).status == 403
        assert peer.ask("POST", f"{REGION}/region/s/register", b"{}", **page).status == 403


def test_where_it_is_switched_off(fake: Fake, memory: Memory) -> None:
    with fake(shared_memory=False) as served, http.InferenceServerClient(served.host) as client:
        assert client.get_system_shared_memory_status() == []
        client.unregister_system_shared_memory()
        assert "system_shared_memory" not in client.get_server_metadata()["extensions"]
        with refused(501, r"not served here \(shared_memory in the table \[gateway\]\)"):
            client.register_system_shared_memory("r", memory.key, SIZE)
        with refused(501, "not served here"):
            client.infer("double", [placed("data", "FP32", (2, 4), 32)])


def test_gpus_memory_is_not_shared(client: Any) -> None:
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_cuda_shared_memory()
    with refused(404, "no region"):
        client.get_cuda_shared_memory_status("r")
    with refused(501, "CUDA shared memory is not served here"):
        client.register_cuda_shared_memory("r", b"handle", 0, 64)
    assert "cuda_shared_memory" not in client.get_server_metadata()["extensions"]


AS_ANOTHER = """
import os, socket, sys
# Another user may read nothing of this installation: all that is needed is there by now.
os.setuid(4711)
host, port, key = sys.argv[1:]

def ask(method, path, body):
    connection = socket.socket()
    connection.connect((host.encode(), int(port)))
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", f"Content-Length: {len(body)}"]
    connection.sendall("\\r\\n".join([*head, "", body]).encode())
    answer = b""
    while part := connection.recv(65536):
        answer += part
    print(answer.decode().replace("\\r\\n", " "))

ask("GET", "/v2/systemsharedmemory/status", "")
ask("POST", "/v2/systemsharedmemory/region/mine/register", '{"key": "%s", "byte_size": 8}' % key)
part = '{"shared_memory_region": "r", "shared_memory_byte_size": 32}'
tensor = '{"name": "data", "shape": [2, 4], "datatype": "FP32", "parameters": %s}' % part
ask("POST", "/v2/models/double/infer", '{"inputs": [%s]}' % tensor)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_has_no_way_to_it(served: Served, client: Any, memory: Memory) -> None:
    """Not to the region, and not to the file, which the gateway could open."""
    client.register_system_shared_memory("r", memory.key, SIZE)
    os.chmod(memory.path, 0o666)
    host, _, port = served.host.rpartition(":")
    code = [sys.executable, "-c", AS_ANOTHER, host, port, memory.key]
    done = subprocess.run(code, capture_output=True, text=True, cwd="/", timeout=60, check=True)
    listed, registered, inferred = done.stdout.splitlines()
    assert "200" in listed
    assert "[]" in listed
    assert "400" in registered
    assert "can't be opened" in registered
    assert "404" in inferred
    assert "no shared memory region 'r'" in inferred
